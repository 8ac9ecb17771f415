"""`midthought chat`: what the terminal shows, its commands, Ctrl-C, and answers to piped lines."""

from __future__ import annotations

import gc
import io
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from endpoints import scripted

from midthought.serve.chat_terminal import ChatSession, ChatTerminal, answer_lines
from midthought.tools.builtin.calculate import CalculateTool

ANSWERED = ['<think>\nI add. #call calculate {"expression": "2+3"}', "So.\n</think>\n\nFive\x1b[2J \u202e!", None]


def session_of(texts: Iterator[str | None]) -> ChatSession:
    tools = [CalculateTool()]
    engine, policy = scripted(lambda: next(texts), tools=tools, max_seq_len=10**9, system_prompt="Be brief.")
    return ChatSession(engine, policy, max_tokens=10**8)


def shown(session: ChatSession, *lines: Any) -> str:
    """What the terminal shows for these lines; an exception among them is raised by reading."""
    given, out = iter(lines), io.StringIO()

    def read_line(prompt: str) -> str:
        line = next(given, EOFError())
        if isinstance(line, BaseException):
            raise line
        return str(line)

    ChatTerminal(session, out=out, read_line=read_line).run()
    return out.getvalue()


def test_thoughts_calls_and_results_are_shown_without_control_characters():
    text = shown(session_of(iter(ANSWERED)), "2 + 3?")
    assert 'I add. #call calculate {"expression": "2+3"}\n#calculate_result:\n5\nSo.\nFive[2J !\n' in text
    assert "\x1b" not in text and "\u202e" not in text


def test_commands_start_over_and_tell_what_there_is():
    session = session_of(iter([*ANSWERED, *ANSWERED]))
    text = shown(session, "2 + 3?", "/wrong", KeyboardInterrupt(), "/help", "/quit", "never asked")
    assert text.count("/reset   start") == 2 and "unknown command /wrong" in text
    assert len(session.messages) == 2
    shown(session, "2 + 3?", "/reset")
    assert session.messages == []


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as in a terminal. Shells that start jobs in the background let them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # Python ignores what is raised in a callback of its collector; Hypothesis has one
    yield
    gc.enable()
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_the_answer_and_not_the_program():
    begun, stopped = threading.Event(), threading.Event()
    rest: Iterator[str | None] = iter([None, "Yes.", None])

    def piece() -> str | None:
        if stopped.is_set():
            return next(rest)
        if begun.is_set():
            return "word "
        begun.set()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        return "<think>"

    session = session_of(iter(piece, "never"))  # the signal ends a generator if it arrives within it
    given = iter(["a", "b"])
    out = io.StringIO()

    def read_line(prompt: str) -> str:
        line = next(given, None)
        if line is None:
            raise EOFError
        if line == "b":
            stopped.set()
        return line

    ChatTerminal(session, out=out, read_line=read_line).run()
    assert "(stopped" in out.getvalue() and out.getvalue().rstrip().endswith("Yes.")
    assert [message["content"] for message in session.messages] == ["b", "Yes."]


def test_every_piped_line_is_a_conversation_with_one_line_of_answer():
    out = io.StringIO()
    session = session_of(iter(["One\ntwo.", None, "<think>a</think>Three.", None]))
    answer_lines(session, ["first\n", "\n", "second\n"], out)
    assert out.getvalue() == "One two.\nThree.\n"
    assert [message["content"] for message in session.messages] == ["second", "Three."]
