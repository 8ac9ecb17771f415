"""Demonstrations from conversations that `midthought feedback convert` wrote. Knows no problem and no critic."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from midthought.data.rows import rows_of
from midthought.errors import DataError
from midthought.feedback.protocol import RIGHT_ANSWER
from midthought.recipes.feedback.demonstrations import Writing
from midthought.tools.definition import ToolOutput
from midthought.types import Task, Trajectory


@dataclass(frozen=True)
class ConvertedDemonstrations:
    """Conversations as Trajectories, shuffled anew in every pass."""

    trajectories: Sequence[Trajectory]
    batch_tokens: int
    seed: int

    @classmethod
    def read(cls, path: str | Path, writing: Writing, batch_tokens: int, seed: int) -> Self:
        """All conversations of a Parquet file. Raises DataError, naming the row, where one cannot be used."""
        trajectories = []
        for row in rows_of(Path(path)):
            if row.problem is not None:
                raise DataError(f"{row.where}: {row.problem}")
            try:
                trajectories.append(_played(row.value["messages"], writing, f"row-{row.number}"))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise DataError(
                    f"{row.where}: no conversation as `midthought feedback convert` writes them ({type(error).__name__}: {error})"
                ) from None
        if not trajectories:
            raise DataError(f"{path} holds no conversation; write it with `midthought feedback convert`")
        return cls(trajectories, batch_tokens, seed)

    def batch(self, step: int) -> list[Trajectory]:
        """Conversations of about `batch_tokens` tokens together, a function of seed and step alone."""
        draw = random.Random(f"converted-{self.seed}-{step}")
        chosen: list[Trajectory] = []
        num_tokens = 0
        for trajectory in self._without_end(draw):
            chosen.append(trajectory)
            num_tokens += len(trajectory.token_ids)
            if num_tokens >= self.batch_tokens:
                break
        return chosen

    def _without_end(self, draw: random.Random) -> Iterator[Trajectory]:
        while True:
            yield from draw.sample(self.trajectories, len(self.trajectories))


def _played(messages: Sequence[Mapping[str, Any]], writing: Writing, task_id: str) -> Trajectory:
    """The conversation from its first user message on; what is said before it is the recipe's own."""
    said = [message for message in messages if message["role"] != "system"]
    trajectory = writing.begin(Task(task_id=task_id, prompt=said[0]["content"], answer=""))
    for place, message in enumerate(said[1:], start=1):
        calls = message.get("tool_calls") if message["role"] == "assistant" else None
        if calls is not None and len(calls):
            arguments = {name: value for name, value in calls[0]["function"]["arguments"].items() if value}
            words = said[place + 1]["content"]
            output = ToolOutput(words, {"is_right": words == RIGHT_ANSWER})
            writing.ask(trajectory, message["content"], arguments, output)
        elif message["role"] == "assistant":
            writing.answer(trajectory, message["content"])
    return trajectory
