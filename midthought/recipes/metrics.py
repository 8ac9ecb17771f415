"""Metrics of finished episodes, computed from trajectories only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from midthought.data.abstention import is_answerable
from midthought.types import Task, ToolOutcome, Trajectory

IsRight = Callable[[Trajectory], float]
"""1 if the answer is right, else 0."""


def exact_match(trajectories: Sequence[Trajectory], is_right: IsRight) -> float:
    """Share of episodes with the correct answer; failed and truncated episodes count as wrong."""
    return sum(map(is_right, trajectories)) / len(trajectories)


def unfinished(trajectories: Sequence[Trajectory]) -> float:
    """Share of episodes that did not end with an answer: a limit of tokens or turns was reached, or they failed."""
    return sum(each.stop_reason is None or each.stop_reason.is_truncated for each in trajectories) / len(trajectories)


def call_rate(trajectories: Sequence[Trajectory]) -> float:
    """Share of episodes with at least one call."""
    return sum(trajectory.num_calls > 0 for trajectory in trajectories) / len(trajectories)


def calls_per_question(trajectories: Sequence[Trajectory]) -> float:
    return sum(trajectory.num_calls for trajectory in trajectories) / len(trajectories)


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


def wilson_interval(share: float, num_trials: int, z: float = 1.96) -> tuple[float, float]:
    """Returns the confidence interval of a share (95 % at z = 1.96). Source: Wilson, JASA 22 (1927).

    >>> [round(bound, 3) for bound in wilson_interval(0.5, 100)]
    [0.404, 0.596]
    """
    centre = (share + z * z / (2 * num_trials)) / (1 + z * z / num_trials)
    half = z / (1 + z * z / num_trials) * math.sqrt(share * (1 - share) / num_trials + z * z / (4 * num_trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def factors(trajectories: Sequence[Trajectory], is_right: IsRight) -> dict[str, float]:
    """Exact match on questions that need the tool, as a product of conditional shares.

    `called`: at least one call; `exact_query`: the first query is the quote of the question (label `quote`); `retrieved`: a
    result contained the evidence; `read`: the answer is correct. A share of no cases is NaN.
    """
    called = [t for t in trajectories if t.num_calls]
    exact = [t for t in called if _queried_exactly(t)]
    retrieved = [t for t in exact if _retrieved(t)]
    return {
        "called": _share(len(called), len(trajectories)),
        "exact_query": _share(len(exact), len(called)),
        "retrieved": _share(len(retrieved), len(exact)),
        "read": _share(sum(map(is_right, retrieved)), len(retrieved)),
    }


def _queried_exactly(trajectory: Trajectory) -> bool:
    return trajectory.tool_events[0].call.parameters.get("query") == trajectory.task.labels.get("quote")


def _retrieved(trajectory: Trajectory) -> bool:
    found = {
        chunk_id
        for event in trajectory.tool_events
        if event.outcome is ToolOutcome.OK
        for chunk_id in event.metadata.get("chunk_ids", ())
    }
    return not found.isdisjoint(trajectory.task.evidence)


def _share(part: float, whole: int) -> float:
    return part / whole if whole else math.nan
