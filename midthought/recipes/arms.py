"""Arms of a recipe's evaluation, and tool executors that replace the tool, to measure how much a policy depends on it.

`Shuffled` returns the evidence of another question, `Oracle` the evidence of the question. Without any tool: `ToolOff`.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from midthought.tools.definition import ToolOutput
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task

Proof = Callable[[Task], str]
"""Returns the result text with the evidence of a task's answer, as the tool would write it."""


@dataclass(frozen=True, slots=True)
class EvaluationArm:
    """One way of answering one set of questions."""

    name: str
    """Key in the summary; empty for the main arm."""
    tasks: Sequence[Task]
    executor: ToolExecutor | None = None
    """None: that of the episodes in training."""
    temperature: float = 0.0


class Oracle(ToolExecutor):
    """Every valid call returns the evidence, whatever the query."""

    def __init__(self, registry: ToolRegistry, proof: Proof) -> None:
        super().__init__(registry)
        self._proof = proof

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        return ToolOutput(self._proof(task), {"chunk_ids": list(task.evidence)})


class Shuffled(ToolExecutor):
    """Every valid call returns the evidence of another question with a different answer, of the same kind if possible.

    The right answer does not occur in that evidence. The other question is one of `tasks`, or of `more` if `tasks` has none.
    Raises ValueError if neither has one.
    """

    def __init__(
        self, registry: ToolRegistry, proof: Proof, tasks: Sequence[Task], seed: int, *, more: Sequence[Task] = ()
    ) -> None:
        super().__init__(registry)
        self._proof = proof
        own, further = _Proofs(tasks, proof), _Proofs(more, proof)
        self._other = {}
        for task in tasks:
            others = own.silent_on(task) or further.silent_on(task)
            if not others:
                raise ValueError(
                    f"task {task.task_id!r}: no other task has another answer than {task.answer!r}; give more tasks"
                )
            alike = [other for other in others if other.labels.get("kind") == task.labels.get("kind")]
            self._other[task.task_id] = random.Random(f"shuffle-{seed}-{task.task_id}").choice(alike or others)

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        other = self._other[task.task_id]
        return ToolOutput(self._proof(other), {"chunk_ids": list(other.evidence)})


class _Proofs:
    """Tasks and their evidence texts, each computed once."""

    def __init__(self, tasks: Sequence[Task], proof: Proof) -> None:
        self._tasks, self._proof = tasks, proof

    def silent_on(self, task: Task) -> list[Task]:
        """Returns the tasks with another answer than `task` whose evidence does not contain its answer."""
        truths = {truth.casefold() for truth in (task.answer, *task.aliases)}
        return [
            other
            for other, proof in self._texts
            if other.answer.casefold() not in truths and not any(truth in proof for truth in truths)
        ]

    @functools.cached_property
    def _texts(self) -> list[tuple[Task, str]]:
        return [(task, self._proof(task).casefold()) for task in self._tasks]
