"""Arms of a recipe's evaluation, and a tool executor that returns chosen evidence, to measure how much a policy depends on its
tool. Without any tool: `ToolOff`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

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


class Proofs(ToolExecutor):
    """Every valid call returns the evidence of the question, whatever the query, or that of the question which `instead` has for
    it, by its id."""

    def __init__(
        self, registry: ToolRegistry, proof: Proof, instead: Mapping[str, Task] = MappingProxyType({})
    ) -> None:
        super().__init__(registry)
        self._proof, self._instead = proof, dict(instead)

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        shown = self._instead.get(task.task_id, task)
        return ToolOutput(self._proof(shown), {"chunk_ids": list(shown.evidence)})


def shuffled(tasks: Sequence[Task], proof: Proof, seed: int, *, more: Sequence[Task] = ()) -> dict[str, Task]:
    """Returns another question for the id of each, with a different answer, of the same kind if possible.

    The right answer does not occur in the other's evidence. The other question is one of `tasks`, or of `more` if `tasks` has
    none. Raises ValueError if neither has one.
    """
    known = [[(task, proof(task).casefold()) for task in part] for part in (tasks, more)]
    found = {}
    for task in tasks:
        truths = {truth.casefold() for truth in (task.answer, *task.aliases)}
        for part in known:
            others = [
                other
                for other, text in part
                if other.answer.casefold() not in truths and not any(truth in text for truth in truths)
            ]
            if others:
                break
        else:
            raise ValueError(
                f"task {task.task_id!r}: no other task has another answer than {task.answer!r}; give more tasks"
            )
        alike = [other for other in others if other.labels.get("kind") == task.labels.get("kind")]
        found[task.task_id] = random.Random(f"shuffle-{seed}-{task.task_id}").choice(alike or others)
    return found
