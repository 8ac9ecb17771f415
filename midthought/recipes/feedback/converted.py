"""Reads conversations that `midthought feedback convert` wrote, as demonstrations for our own learner and for verl.

Does not depend on problems or critics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from midthought.data.rows import rows_of
from midthought.errors import DataError
from midthought.recipes.feedback.demonstrations import Writing
from midthought.rollout.demonstration import demonstration
from midthought.rollout.openai_messages import calls_of
from midthought.tokenization.chat_template import Message
from midthought.tools.call_formats import ToolCallFormat
from midthought.types import Task, Trajectory

Taken = TypeVar("Taken")


def read_demonstrations(path: str | Path, writing: Writing) -> list[Trajectory]:
    """Reads all conversations of a Parquet file. Raises `DataError` with the row if one cannot be used."""

    def played(said: Sequence[Message], number: int) -> Trajectory:
        task = _task(said, f"row-{number}")
        messages = [*task.messages(*writing.system), *said[1:]]
        return demonstration(task, messages, writing.renderer, writing.call_format)

    return _read(path, played)


def read_messages(
    path: str | Path, call_format: ToolCallFormat, system: Sequence[str]
) -> list[list[Mapping[str, str]]]:
    """Reads all conversations of a Parquet file as plain messages in the format of the episodes: with their system message, and
    the calls as text in the answers. Raises `DataError` as `read_demonstrations`."""
    return _read(path, lambda said, _: _written(said, call_format, system))


def _read(path: str | Path, take: Callable[[Sequence[Message], int], Taken]) -> list[Taken]:
    """Returns `take(messages, row number)` of every row; system messages are dropped, because the recipe has its own."""
    taken = []
    for row in rows_of(Path(path)):
        if row.problem is not None:
            raise DataError(f"{row.where}: {row.problem}")
        try:
            said = [_without_gaps(message) for message in row.value["messages"] if message["role"] != "system"]
            taken.append(take(said, row.number))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(
                f"{row.where}: no conversation as `midthought feedback convert` writes them ({type(error).__name__}: {error})"
            ) from None
    if not taken:
        raise DataError(f"{path} holds no conversation; write it with `midthought feedback convert`")
    return taken


def _without_gaps(message: Message) -> Message:
    """Returns the message without arguments that are empty: in a column of Parquet, every call has the arguments of all."""
    calls = message.get("tool_calls")
    if calls is None:
        return {"role": message["role"], "content": message["content"]}
    functions = [call["function"] for call in calls]
    kept = [{key: value for key, value in each["arguments"].items() if value} for each in functions]
    named = [{"name": each["name"], "arguments": arguments} for each, arguments in zip(functions, kept, strict=True)]
    return {**message, "tool_calls": [{"type": "function", "function": function} for function in named]}


def _task(said: Sequence[Message], task_id: str) -> Task:
    return Task(task_id=task_id, prompt=said[0]["content"], answer="")


def _written(said: Sequence[Message], call_format: ToolCallFormat, system: Sequence[str]) -> list[Mapping[str, str]]:
    messages = _task(said, "").messages(*system)
    for message in said[1:]:
        calls = (call_format.render_call(*call) for call in calls_of(message))
        messages.append({"role": message["role"], "content": "\n".join([message["content"], *calls])})
    return messages
