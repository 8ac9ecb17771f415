"""Toolboxes that answer otherwise than the tool would: what does a policy owe to its tool, what to its own reading?

`ToolOff` refuses, `Shuffled` gives another question's proof, `Oracle` gives the proof itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from midthought.tools.definition import ToolOutput
from midthought.tools.registry import ToolRegistry
from midthought.tools.schedule import Toolbox
from midthought.types import ParsedAction, Task

Proof = Callable[[Task], str]
"""The result text that proves a task's answer, as the tool would write it."""


class ToolOff(Toolbox):
    """Every call is answered with an error."""

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        raise RuntimeError("the tool is switched off")


class Oracle(Toolbox):
    """Every sound call is answered with the proof, whatever it asked for."""

    def __init__(self, registry: ToolRegistry, proof: Proof) -> None:
        super().__init__(registry)
        self._proof = proof

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        return ToolOutput(self._proof(task), {"chunk_ids": list(task.evidence)})


class Shuffled(Toolbox):
    """Every sound call is answered with the proof of another question, of the same kind where possible, whose answer
    is another one and does not occur in that proof."""

    def __init__(self, registry: ToolRegistry, proof: Proof, tasks: Sequence[Task], seed: int) -> None:
        super().__init__(registry)
        self._proof = proof
        self._other = {
            task.task_id: self._draw(task, tasks, random.Random(f"shuffle-{seed}-{task.task_id}")) for task in tasks
        }

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        other = self._other[task.task_id]
        return ToolOutput(self._proof(other), {"chunk_ids": list(other.evidence)})

    def _draw(self, task: Task, tasks: Sequence[Task], rng: random.Random) -> Task:
        truths = {truth.casefold() for truth in (task.answer, *task.aliases)}
        others = [
            other
            for other in tasks
            if other.answer.casefold() not in truths
            and not any(truth in self._proof(other).casefold() for truth in truths)
        ]
        if not others:
            raise ValueError(
                f"task {task.task_id!r}: no other task has another answer than {task.answer!r}; give more tasks"
            )
        alike = [other for other in others if other.labels.get("kind") == task.labels.get("kind")]
        return rng.choice(alike or others)
