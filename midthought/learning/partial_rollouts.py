"""Iterations that end as soon as enough groups are done: what still runs is carried over into the next (partial rollouts).

Kimi k1.5 (arXiv 2501.12599, section 2.6.2), APRIL (arXiv 2509.18521). Knows no engine: groups come from a stream.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Protocol, cast

from midthought.learning.rollout_batch import (
    PPOPlan,
    RolloutBatch,
    RolloutSource,
    TaskStream,
    collect_batches,
    has_zero_variance,
    shape_rewards,
)
from midthought.types import Task, Trajectory


class EpisodeStream(Protocol):
    """Groups of episodes that may outlive an iteration: begun, taken as they finish, interrupted by `pause`."""

    next_position: int
    """Number of the group that is begun next, over the whole run."""

    @property
    def policy_version(self) -> int:
        """The version that samples now."""
        ...

    @property
    def num_open(self) -> int:
        """Groups that were begun and not taken."""
        ...

    @property
    def num_due(self) -> int:
        """Those of them that must be taken before the next `pause`."""
        ...

    @property
    def num_episodes(self) -> int:
        """Episodes of open groups."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Those of them that have not ended."""
        ...

    def begin(self, task: Task, group_size: int) -> None:
        """Begin the next group."""
        ...

    def take(self, *, due_only: bool = False) -> list[Trajectory]:
        """Wait for a finished group (`due_only`: of those that are due) and hand it over."""
        ...

    def pause(self) -> None:
        """Interrupt what is running until the next `take`."""
        ...


class StreamingSource(RolloutSource, Protocol):
    """A source whose episodes may outlive an iteration."""

    @property
    def stream(self) -> EpisodeStream | None:
        """None where the source was made without one."""
        ...


def collect(source: RolloutSource, tasks: TaskStream, plan: PPOPlan, iteration: int) -> RolloutBatch:
    """An iteration's episodes: from the source's stream where the plan has `over_sampling`, else batch by batch."""
    if plan.over_sampling is None:
        return collect_batches(source, tasks, plan, iteration)
    stream = cast(StreamingSource, source).stream
    assert stream is not None
    return collect_from_stream(stream, tasks, plan, iteration)


def collect_from_stream(stream: EpisodeStream, tasks: TaskStream, plan: PPOPlan, iteration: int) -> RolloutBatch:
    """Take finished groups until there are enough, and interrupt the others.

    Enough are `batch_size` episodes in groups that can be learned from, or `plan.max_batches` times as many in all. Every
    group is handed over whole and once; groups that are due have their places kept free and are waited for. Where dynamic
    sampling drops a flat group, another is begun in its place at once. Metrics, besides those of `collect_batches`:
    `partial/num_resumed` (episodes that an earlier iteration began and this one went on with), `partial/num_carried` (left
    for the next one, finished ones as well), `partial/num_unfinished` (those of them that were interrupted), and those of
    `staleness`.
    """
    num_groups = plan.batch_size // plan.group_size
    max_taken = num_groups * plan.max_batches
    stream.next_position = max(stream.next_position, iteration * num_groups)
    batch = RolloutBatch()
    kept: list[list[Trajectory]] = []
    num_taken = num_flat = 0
    batch.metrics["partial/num_resumed"] = stream.num_unfinished
    began = time.perf_counter()
    try:
        _fill(stream, tasks, plan, math.ceil(num_groups * (plan.over_sampling or 1.0)))
        while True:
            num_due = stream.num_due
            is_full = len(kept) + num_due >= num_groups or num_taken + num_due >= max_taken
            if is_full and not num_due:
                break
            group = stream.take(due_only=is_full)
            num_taken += 1
            batch.data.trajectories += group
            shape_rewards(group, plan)
            judged = [trajectory for trajectory in group if trajectory.reward is not None]
            is_flat = bool(judged) and plan.drop_flat_groups and has_zero_variance(judged, by_turn=plan.flat_by_turn)
            num_flat += is_flat
            if judged and not is_flat:
                kept.append(judged)
            _fill(stream, tasks, plan, min(num_groups - len(kept), max_taken - num_taken))
    finally:
        stream.pause()
    batch.data.seconds = time.perf_counter() - began
    batch.data.policy_version = stream.policy_version
    batch.usable = [trajectory for group in kept for trajectory in group]
    if plan.drop_flat_groups:
        batch.metrics["batch/num_flat_groups"] = num_flat
    batch.metrics["partial/num_carried"] = stream.num_episodes
    batch.metrics["partial/num_unfinished"] = stream.num_unfinished
    batch.metrics |= staleness(batch.usable, stream.policy_version)
    return batch


def staleness(trajectories: Sequence[Trajectory], policy_version: int) -> dict[str, float]:
    """How old the policy's tokens are where this version is about to be updated.

    `partial/stale_token_share`: those of older versions among all; `partial/max_staleness`: updates since the oldest. Both
    0 where there is no token.
    """
    ages = [
        policy_version - version
        for trajectory in trajectories
        for segment in trajectory.segments
        for version, is_own in zip(segment.policy_versions, segment.loss_mask, strict=True)
        if is_own
    ]
    return {
        "partial/stale_token_share": sum(age > 0 for age in ages) / max(len(ages), 1),
        "partial/max_staleness": max(ages, default=0),
    }


def task_of_group(tasks: TaskStream, position: int) -> Task:
    """The task of this group of the run: every group is a batch of one, so that nothing depends on how many are drawn."""
    return tasks.draw(position, 1)[0]


def _fill(stream: EpisodeStream, tasks: TaskStream, plan: PPOPlan, num_groups: int) -> None:
    """Begin groups until so many are on their way."""
    while stream.num_open < num_groups:
        stream.begin(task_of_group(tasks, stream.next_position), plan.group_size)
