"""Evaluation arms, and tool executors that replace the tool, to measure how much a policy depends on it.

`ToolOff` refuses, `Shuffled` returns the evidence of another question, `Oracle` returns the evidence of the question.
`OtherResults` needs no evidence: it returns what the same tool returned in another episode.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from midthought.tools.definition import ToolOutput
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolOutcome, Trajectory

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


class ToolOff(ToolExecutor):
    """Every call returns an error."""

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        raise RuntimeError("the tool is switched off")


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


class OtherResults(ToolExecutor):
    """Every valid call returns the first result that the same tool had in another task's episode, one in which no right answer of
    this task is a word; an error if there is none."""

    def __init__(self, registry: ToolRegistry, episodes: Sequence[Trajectory], seed: int = 0) -> None:
        super().__init__(registry)
        self._seed = seed
        self._results: dict[str, dict[str, str]] = {}
        for episode in episodes:
            for event in episode.tool_events:
                if event.outcome is ToolOutcome.OK and event.call.tool_name and event.call.result:
                    of_tool = self._results.setdefault(event.call.tool_name, {})
                    of_tool.setdefault(episode.task.task_id, event.call.result)

    @property
    def num_results(self) -> int:
        return sum(map(len, self._results.values()))

    async def answer(self, action: ParsedAction, task: Task) -> ToolOutput:
        truths = "|".join(re.escape(truth) for truth in (task.answer, *task.aliases) if truth)
        right = re.compile(rf"(?<!\w)({truths})(?!\w)", re.IGNORECASE) if truths else None
        others = [
            text
            for task_id, text in self._results.get(str(action.tool_name), {}).items()
            if task_id != task.task_id and not (right and right.search(text))
        ]
        if not others:
            raise RuntimeError("no other episode has a result of this tool")
        return ToolOutput(random.Random(f"shuffle-{self._seed}-{task.task_id}").choice(others))


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
