"""Answers that no policy has sampled, and one conversation in the form of each dialect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from midthought.serve.answer_stream import Piece, PieceKind
from midthought.serve.chat_answer import ChatAnswer, ClientCall
from midthought.serve.dialects.dialect import Asked, Dialect
from midthought.types import Completion, Finish, Task, Trajectory

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = {
    "chat": [{"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}],
    "anthropic": [{"name": "weather", "description": "Tells it.", "input_schema": SCHEMA, "cache_control": None}],
}
CALLS = [
    ClientCall(id=f"call_{city}", name="weather", arguments=json.dumps({"city": city})) for city in ("Oslo", "Rom")
]
THOUGHT, RESULT = Piece(PieceKind.THOUGHT, "I look.", True), Piece(PieceKind.RESULT, "5", True)
SAID, MORE = Piece(PieceKind.ANSWER, "It is", True), Piece(PieceKind.ANSWER, " sunny ☀.", False)
AGAIN, LAST = Piece(PieceKind.THOUGHT, "And Rom?", True), Piece(PieceKind.ANSWER, "In Rom, too.", True)
ANSWERS: dict[str, dict[str, Any]] = {
    "text": {"pieces": [SAID, MORE]},
    "a thought": {"pieces": [THOUGHT, SAID, MORE]},
    "several thoughts": {"pieces": [THOUGHT, RESULT, SAID, MORE, AGAIN, LAST]},
    "two calls": {"pieces": [THOUGHT, SAID], "calls": CALLS, "finish": "tool_calls"},
    "a call alone": {"pieces": [], "calls": CALLS[:1], "finish": "tool_calls"},
    "a call after a thought": {"pieces": [THOUGHT], "calls": CALLS[:1], "finish": "tool_calls"},
    "cut": {"pieces": [THOUGHT], "finish": "length"},
    "a stop text": {"pieces": [SAID], "stop_text": "END"},
    "nothing": {"pieces": []},
}  # fmt: skip


def answer(pieces: Sequence[Piece], finish: Any = "stop", **fields: Any) -> ChatAnswer:
    """An answer with 5 tokens after a prompt of 3."""
    trajectory = Trajectory(Task(task_id="a", prompt="", answer=""), [1, 2, 3])
    trajectory.add_sampled(Completion(token_ids=(4,) * 5, sampled_logprobs=(-0.5,) * 5, finish=Finish.END))
    return ChatAnswer(trajectory=trajectory, pieces=pieces, finish=finish, node=None, **fields)  # type: ignore[arg-type]


def body(dialect: Dialect, **fields: Any) -> bytes:
    """A request."""
    least = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
    return json.dumps({name: value for name, value in (least | fields).items() if value is not ...}).encode()


def read(dialect: Dialect, *, training: bool = True, **fields: Any) -> Asked:
    """A request, read."""
    return dialect.read(body(dialect, **fields), training=training, renderer=None)  # type: ignore[arg-type]


def events(asked: Asked, *answers: ChatAnswer) -> list[bytes]:
    """The events of a stream, with one that says nothing."""
    found = [asked.writer.begin(3), asked.writer.keep_alive()]
    for number, each in enumerate(answers):
        found += [asked.writer.piece(number, piece) for piece in each.pieces]
    return [*found, asked.writer.end(answers)]


CALLED = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
