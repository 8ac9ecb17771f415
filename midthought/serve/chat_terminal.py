"""`midthought chat` in a terminal: thoughts, calls and results as they arrive, and commands. Without one: an answer per line."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterable
from typing import IO, Any

from midthought.engines.generation import BaseInferenceEngine
from midthought.errors import MidthoughtError
from midthought.report.console import StyledStream, printable
from midthought.serve.answer_stream import OnPiece, Piece, PieceKind
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.chat_policy import ChatPolicy
from midthought.tokenization.chat_template import Message

HELP = """/reset   start a new conversation
/quit    end (also Ctrl-D); Ctrl-C stops an answer"""
_STYLES = {
    PieceKind.THOUGHT: "dim italic",
    PieceKind.CALL: "cyan",
    PieceKind.RESULT: "yellow",
    PieceKind.ANSWER: "",
}


class ChatSession:
    """A conversation that grows with every question. `temperature`, `max_tokens` None: the policy's own settings. The n-th
    answer is sampled with `seed` + n; None: a random seed."""

    def __init__(
        self,
        engine: BaseInferenceEngine,
        policy: ChatPolicy,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.messages: list[Message] = []
        self._engine, self._answers = engine, ChatAnswers(policy)
        self._temperature, self._max_tokens = temperature, max_tokens
        self._seed = random.SystemRandom().randrange(2**31) if seed is None else seed

    def ask(self, question: str, on_piece: OnPiece) -> ChatAnswer:
        """Returns the answer; `on_piece` gets its text as it arrives, in another thread. An answer that is interrupted or fails
        leaves the conversation as it was. Raises as `ChatAnswers.answer`."""
        messages: list[Message] = [*self.messages, {"role": "user", "content": question}]
        sampling = {} if self._temperature is None else {"temperature": self._temperature}
        request = ChatRequest(messages=messages, seed=self._seed, max_tokens=self._max_tokens, sampling=sampling)
        answer = self._engine.run(self._answers.answer(request, on_piece))
        self._seed += 1
        self.messages = [*messages, {"role": "assistant", "content": answer.content}]
        return answer


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
                self._command(line)
            elif line:
                self._answer(line)

    def _command(self, name: str) -> None:
        if name == "/reset":
            self._session.messages = []
            self._say("A new conversation.", "dim")
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
        session.messages = []
        content = session.ask(line.strip(), lambda piece: None).content
        stream.write(printable(" ".join(content.split())) + "\n")
        stream.flush()
