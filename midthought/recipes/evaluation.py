"""Tasks of a recipe and their evaluation: questions by part, arms, and metrics of finished episodes, computed from
trajectories only.

`Proofs` returns chosen evidence, to measure how much a policy depends on its tool. Without any tool: `ToolOff`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from midthought.config import RecipeConfig
from midthought.data.final_answers import is_answerable
from midthought.rollout.episode import EpisodeEnvironment
from midthought.rollout.episode_source import EpisodeSource
from midthought.tokenization import Renderer
from midthought.tools.definition import ToolOutput
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.trainer.sources import PromptBuilder, open_sources
from midthought.trainer.tasks import ListedTasks
from midthought.trainer.validation import states
from midthought.types import ParsedAction, Task, ToolOutcome, Trajectory

Proof = Callable[[Task], str]
"""Returns the result text with the evidence of a task's answer, as the tool would write it."""
IsRight = Callable[[Trajectory], float]
"""1 if the answer is right, else 0."""


class RecipeTasks(ListedTasks):
    """Questions by part (`train`, `validation`, `test`, …), all with one environment."""

    best_by = "exact_match"
    renderer: Renderer
    """Of the policy, when it is loaded."""

    def __init__(
        self,
        config: RecipeConfig,
        parts: Mapping[str, Sequence[Task]],
        prompts: PromptBuilder,
        environment: EpisodeEnvironment,
    ) -> None:
        super().__init__(parts["train"], parts["validation"], environment, config.training.seed)
        self.config, self.parts, self.prompts = config, parts, prompts

    def longest_prompt(self, num_tokens: Callable[[Task], int]) -> int:
        return max(num_tokens(task) for tasks in self.parts.values() for task in tasks)

    def rollouts(self, policy: Any) -> EpisodeSource:
        """Runs evaluation episodes with the policy's current weights, in this process. Close it after use."""
        config = self.config.copied({"inference": {"backend": "local"}, "ray": {"use_ray": False}})
        _, source, _ = open_sources(policy, None, self.renderer, self.prompts, self, config)
        return source


# -- arms ----------------------------------------------------------------------------------------------------------


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

    The right answer is no word of the other's evidence. The other question is one of `tasks`, or of `more` if `tasks` has
    none. Raises ValueError if neither has one.
    """
    found = {}
    for task in tasks:
        draw, kind = random.Random(f"shuffle-{seed}-{task.task_id}"), task.labels.get("kind")
        parts = [draw.sample(part, len(part)) for part in (tasks, more)]
        drawn = [other for part in parts for other in sorted(part, key=lambda each: each.labels.get("kind") != kind)]
        other = next((each for each in drawn if not states(f"{proof(each)} {each.answer}", task)), None)
        if other is None:
            remedy = "give more tasks"
            raise ValueError(f"task {task.task_id!r}: no other task has another answer than {task.answer!r}; {remedy}")
        found[task.task_id] = other
    return found


# -- metrics -------------------------------------------------------------------------------------------------------


def share_of(part: float, whole: int) -> float:
    """Returns the share; NaN of no cases."""
    return part / whole if whole else math.nan


def exact_match(trajectories: Sequence[Trajectory], is_right: IsRight) -> float:
    """Share of episodes whose last answer is right, also if a limit ended them; those without an answer count as wrong."""
    return sum(map(is_right, trajectories)) / len(trajectories)


def unfinished(trajectories: Sequence[Trajectory]) -> float:
    """Share of episodes that did not end with an answer: a limit of tokens or turns was reached, or they failed."""
    return sum(each.stop_reason is None or each.stop_reason.is_truncated for each in trajectories) / len(trajectories)


def call_rate(trajectories: Sequence[Trajectory]) -> float:
    """Share of episodes with at least one call."""
    return sum(trajectory.num_calls > 0 for trajectory in trajectories) / len(trajectories)


def constant_guess(tasks: Sequence[Task]) -> float:
    """Exact match of the best constant answer."""
    return Counter(task.answer for task in tasks).most_common(1)[0][1] / len(tasks)


def balanced_accuracy(trajectories: Sequence[Trajectory], is_right: IsRight) -> dict[str, float]:
    """Returns `balanced_accuracy`, the mean of the exact matches of questions with and without an answer; nothing if one of the
    two is missing."""
    parts = [[each for each in trajectories if is_answerable(each.task) is wanted] for wanted in (True, False)]
    if not all(parts):
        return {}
    return {"balanced_accuracy": sum(exact_match(part, is_right) for part in parts) / 2}


def with_interval(key: str, share: float, num_trials: int) -> dict[str, float]:
    """Returns a share under its key, and its confidence interval (95 %) as `KEY.low` and `KEY.high`. Source: Wilson, JASA 22
    (1927).

    >>> {key: round(value, 3) for key, value in with_interval("a", 0.5, 100).items()}
    {'a': 0.5, 'a.low': 0.404, 'a.high': 0.596}
    """
    z = 1.96
    centre = (share + z * z / (2 * num_trials)) / (1 + z * z / num_trials)
    half = z / (1 + z * z / num_trials) * math.sqrt(share * (1 - share) / num_trials + z * z / (4 * num_trials**2))
    return {key: share, f"{key}.low": max(0.0, centre - half), f"{key}.high": min(1.0, centre + half)}


def factors(trajectories: Sequence[Trajectory], is_right: IsRight) -> dict[str, float]:
    """Exact match on questions that need the tool, as a product of conditional shares.

    `called`: at least one call; `exact_query`: the first query is the quote of the question (label `quote`); `retrieved`: a
    result contained the evidence; `read`: the answer is correct. A share of no cases is NaN.
    """
    called = [t for t in trajectories if t.num_calls]
    exact = [t for t in called if t.tool_events[0].call.parameters.get("query") == t.task.labels.get("quote")]
    retrieved = [t for t in exact if _retrieved(t)]
    return {
        "called": share_of(len(called), len(trajectories)),
        "exact_query": share_of(len(exact), len(called)),
        "retrieved": share_of(len(retrieved), len(exact)),
        "read": share_of(sum(map(is_right, retrieved)), len(retrieved)),
    }


def _retrieved(trajectory: Trajectory) -> bool:
    results = (event.metadata for event in trajectory.tool_events if event.outcome is ToolOutcome.OK)
    return any({*found.get("chunk_ids", ())} & {*trajectory.task.evidence} for found in results)
