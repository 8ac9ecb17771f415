"""`midthought chat` in a terminal: thoughts, calls and results as they arrive, and commands. Without one: an answer per line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any

from midthought.errors import MidthoughtError
from midthought.report.console import StyledStream, printable
from midthought.serve.answer_stream import Piece, PieceKind
from midthought.serve.chat_session import ChatSession

HELP = """/reset         start a new conversation
/system TEXT   set the system prompt and start a new conversation; without TEXT: show it
/tools         list the tools
/quit          end (also Ctrl-D); Ctrl-C stops an answer"""
_STYLES = {
    PieceKind.THOUGHT: "dim italic",
    PieceKind.CALL: "cyan",
    PieceKind.RESULT: "yellow",
    PieceKind.ANSWER: "",
}


class ChatTerminal:
    """Reads questions and commands from a terminal and shows the answers. `read_line(prompt)` raises EOFError at the end."""

    def __init__(
        self, session: ChatSession, *, out: IO[str] | None = None, read_line: Callable[[str], str] = input
    ) -> None:
        self._session, self._read_line = session, read_line
        self._out = StyledStream(out)

    def run(self) -> None:
        """Answers until /quit or the end of the input."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # gives `input` editing and a history
        self._say("/help lists the commands.", "dim")
        while True:
            try:
                line = self._read_line("> ").strip()
            except KeyboardInterrupt:
                self._say("\n/quit or Ctrl-D ends.", "dim")
                continue
            except EOFError:
                self._say("")
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(*line.partition(" ")[::2])
            elif line:
                self._answer(line)

    def _command(self, name: str, text: str) -> None:
        session = self._session
        if name == "/reset":
            session.reset()
            self._say("A new conversation.", "dim")
        elif name == "/system" and text.strip():
            session.system_prompt = text.strip()
            self._say("A new conversation with this system prompt.", "dim")
        elif name == "/system":
            self._say(session.system_prompt or "There is no system prompt.", "dim")
        elif name == "/tools":
            self._say("\n".join(session.tool_lines()) or "There are no tools.", "dim")
        else:
            self._say(HELP if name == "/help" else f"unknown command {name}\n{HELP}", "dim")

    def _answer(self, question: str) -> None:
        has_text = False

        def show(piece: Piece) -> None:
            nonlocal has_text
            self._out.write(("\n" if has_text and piece.is_new else "") + piece.text, _STYLES[piece.kind])
            has_text = True

        try:
            answer = self._session.ask(question, show)
        except KeyboardInterrupt:
            self._say("\n(stopped; the question is not part of the conversation)", "dim")
        except MidthoughtError as error:
            self._say(("\n" if has_text else "") + str(error), "red")
        else:
            self._say("\n(the limit of tokens ended the answer)" if answer.finish == "length" else "", "dim")

    def _say(self, text: str, style: str = "") -> None:
        self._out.write(text + "\n", style)


def answer_lines(session: ChatSession, lines: Iterable[str], out: IO[str] | None = None) -> None:
    """Writes one line with the answer to each line of the input; every line is a conversation of its own."""
    stream: Any = out or sys.stdout
    for line in lines:
        if not line.strip():
            continue
        session.reset()
        content = session.ask(line.strip(), lambda piece: None).content
        stream.write(printable(" ".join(content.split())) + "\n")
        stream.flush()
