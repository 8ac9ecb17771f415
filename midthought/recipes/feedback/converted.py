"""Reads conversations that `midthought feedback convert` wrote, as demonstrations for our own learner and for verl.

Does not depend on problems or critics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from midthought.data.rows import rows_of
from midthought.errors import DataError
from midthought.feedback.prompts import RIGHT_ANSWER, TOOL_NAME
from midthought.recipes.feedback.demonstrations import Writing
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.definition import ToolOutput
from midthought.trainer.demonstrations import ShuffledDemonstrations
from midthought.types import Task, Trajectory

Taken = TypeVar("Taken")


@dataclass(frozen=True)
class ConvertedDemonstrations:
    """Conversations as Trajectories, reshuffled in every pass."""

    trajectories: Sequence[Trajectory]
    batch_tokens: int
    seed: int

    @classmethod
    def read(cls, path: str | Path, writing: Writing, batch_tokens: int, seed: int) -> Self:
        """Reads all conversations of a Parquet file. Raises `DataError` with the row if one cannot be used."""
        trajectories = _read(path, lambda said, number: _played(said, writing, f"row-{number}"))
        return cls(trajectories, batch_tokens, seed)

    def batch(self, step: int) -> list[Trajectory]:
        """Returns conversations of about `batch_tokens` tokens in total; depends only on the seed and the step."""
        return ShuffledDemonstrations(self.trajectories, self.batch_tokens, f"converted-{self.seed}")(step)


def read_messages(
    path: str | Path, call_format: ToolCallFormat, system: Sequence[str]
) -> list[list[Mapping[str, str]]]:
    """Reads all conversations of a Parquet file as plain messages in the format of the episodes: with their system message, and
    the calls as text in the answers. Raises `DataError` as `ConvertedDemonstrations.read` does."""
    return _read(path, lambda said, _: _written(said, call_format, system))


class _Turn(NamedTuple):
    """One answer of the policy and, if it requested feedback, the call's arguments and the result."""

    answer: str
    arguments: Mapping[str, str] | None = None
    result: str = ""


def _read(path: str | Path, take: Callable[[Sequence[Mapping[str, Any]], int], Taken]) -> list[Taken]:
    """Returns `take(messages, row number)` of every row; system messages are dropped, because the recipe has its own."""
    taken = []
    for row in rows_of(Path(path)):
        if row.problem is not None:
            raise DataError(f"{row.where}: {row.problem}")
        try:
            said = [message for message in row.value["messages"] if message["role"] != "system"]
            taken.append(take(said, row.number))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(
                f"{row.where}: no conversation as `midthought feedback convert` writes them ({type(error).__name__}: {error})"
            ) from None
    if not taken:
        raise DataError(f"{path} holds no conversation; write it with `midthought feedback convert`")
    return taken


def _turns(said: Sequence[Mapping[str, Any]]) -> Iterator[_Turn]:
    for place, message in enumerate(said):
        calls = message.get("tool_calls") if message["role"] == "assistant" else None
        if calls is not None and len(calls):
            arguments = {name: value for name, value in calls[0]["function"]["arguments"].items() if value}
            yield _Turn(message["content"], arguments, said[place + 1]["content"])
        elif message["role"] == "assistant":
            yield _Turn(message["content"])


def _played(said: Sequence[Mapping[str, Any]], writing: Writing, task_id: str) -> Trajectory:
    trajectory = writing.begin(Task(task_id=task_id, prompt=said[0]["content"], answer=""))
    for turn in _turns(said):
        if turn.arguments is None:
            writing.answer(trajectory, turn.answer)
        else:
            output = ToolOutput(turn.result, {"is_right": turn.result == RIGHT_ANSWER})
            writing.ask(trajectory, turn.answer, turn.arguments, output)
    return trajectory


def _written(
    said: Sequence[Mapping[str, Any]], call_format: ToolCallFormat, system: Sequence[str]
) -> list[Mapping[str, str]]:
    messages = Task(task_id="", prompt=said[0]["content"], answer="").messages(*system)
    for turn in _turns(said):
        if turn.arguments is None:
            messages.append({"role": "assistant", "content": turn.answer})
        else:
            call = call_format.render_call(TOOL_NAME, turn.arguments)
            messages.append({"role": "assistant", "content": f"{turn.answer}\n{call}"})
            messages.append({"role": "tool", "content": turn.result})
    return messages
