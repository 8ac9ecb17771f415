"""The episodes of an iteration, and which of them are learned from: flat groups, dynamic sampling, greedy baselines.

Knows no engine and no task by name: tasks come from a stream, trajectories from a source.
"""

from __future__ import annotations

import functools
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from midthought.algo.shaping import overlong_penalty
from midthought.types import Reward, RolloutData, Task, Trajectory


class TaskStream(Protocol):
    """Where the tasks of an iteration come from."""

    def draw(self, iteration: int, num_groups: int, attempt: int = 0) -> list[Task]:
        """One task per group; the same arguments give the same tasks. `attempt` counts the batches of one iteration."""
        ...


class RolloutSource(Protocol):
    """Where trajectories come from: this process, or a cluster."""

    def rollout(
        self, tasks: Sequence[Task], *, iteration: int, group_size: int, attempt: int = 0, greedy: bool = False
    ) -> RolloutData:
        """One episode per task, scored; every `group_size` in a row are one group.

        `attempt` counts the batches of one iteration, each with seeds of its own: given from the second on (dynamic
        sampling). `greedy` asks for the likeliest token always: given for ReMax alone.
        """
        ...

    def update_weights(self) -> None:
        """The learner has changed the policy; sample from the new one from now on."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOPlan:
    """What an iteration does."""

    batch_size: int
    group_size: int
    pad_token_id: int
    critic_warmup_iters: int = 0
    drop_flat_groups: bool = False
    """Leave groups out in which all rewards are equal: to an estimator that compares within groups they say nothing."""
    flat_by_turn: bool = False
    """A group is flat only where the rewards of all turns are equal, too."""
    max_batches: int = 1
    """Batches rolled out in one iteration, at most, until `batch_size` episodes stand in groups that are not flat (DAPO's
    dynamic sampling, arXiv 2503.14476, eq. 11)."""
    over_sampling: float | None = None
    """Groups on their way at once, as a multiple of those that are needed; what is not done then outlives the iteration
    (partial rollouts, for which the source has a stream). None: every iteration begins and ends its own."""
    greedy_baseline: bool = False
    """Roll out one greedy episode per group, too; its reward is the group's baseline (ReMax)."""
    overlong_penalty: float = 0.0
    """What an episode of `overlong_max_tokens` tokens loses of its reward; 0: nothing."""
    overlong_max_tokens: int = 0
    overlong_buffer_tokens: int = 0
    """It begins to lose so many tokens earlier."""


@dataclass
class RolloutBatch:
    """What the rollouts of one iteration gave."""

    data: RolloutData = field(default_factory=RolloutData)
    """Every episode, but for the greedy ones."""
    usable: list[Trajectory] = field(default_factory=list)
    """Those that are learned from, group by group."""
    baselines: list[float] | None = None
    """The baseline of each of them (ReMax)."""
    metrics: dict[str, float] = field(default_factory=dict)


def collect_batches(source: RolloutSource, tasks: TaskStream, plan: PPOPlan, iteration: int) -> RolloutBatch:
    """Roll out the tasks of an iteration and sort out what can be learned from.

    Episodes without a reward (they broke) are left out, then flat groups where the plan says so; with dynamic sampling
    further batches follow until enough groups are left or `plan.max_batches` is reached, and groups beyond `batch_size`
    are left out. Metrics, where the plan asks for it: `batch/num_flat_groups`, `batch/num_rollouts`,
    `batch/num_surplus_groups`, `batch/num_groups_without_baseline`, `reward/greedy`.
    """
    batch = RolloutBatch()
    num_groups = plan.batch_size // plan.group_size
    kept: list[list[Trajectory]] = []
    num_flat = num_rollouts = 0
    while num_rollouts < plan.max_batches and len(kept) < num_groups:
        drawn = [task for task in tasks.draw(iteration, num_groups, num_rollouts) for _ in range(plan.group_size)]
        again: dict[str, Any] = {"attempt": num_rollouts} if num_rollouts else {}
        data = source.rollout(drawn, iteration=iteration, group_size=plan.group_size, **again)
        shape_rewards(data.trajectories, plan)
        groups = _judged_groups(data.trajectories, plan.group_size, first=num_rollouts * num_groups)
        flat = [plan.drop_flat_groups and has_zero_variance(group, by_turn=plan.flat_by_turn) for group in groups]
        kept += [group for group, is_flat in zip(groups, flat, strict=True) if not is_flat]
        num_flat += sum(flat)
        num_rollouts += 1
        batch.data.trajectories += data.trajectories
        batch.data.seconds += data.seconds
        batch.data.policy_version = data.policy_version
    if plan.drop_flat_groups:
        batch.metrics["batch/num_flat_groups"] = num_flat
    if plan.max_batches > 1:
        batch.metrics["batch/num_rollouts"] = num_rollouts
        batch.metrics["batch/num_surplus_groups"] = max(len(kept) - num_groups, 0)
    kept = kept[:num_groups]
    if plan.greedy_baseline and kept:
        kept = _with_baselines(source, kept, plan, iteration, batch)
    batch.usable = [trajectory for group in kept for trajectory in group]
    return batch


def _with_baselines(
    source: RolloutSource, groups: list[list[Trajectory]], plan: PPOPlan, iteration: int, batch: RolloutBatch
) -> list[list[Trajectory]]:
    """Roll out the greedy episode of every group; groups whose own broke are left out and counted."""
    tasks = [group[0].task for group in groups]
    data = source.rollout(tasks, iteration=iteration, group_size=1, greedy=True)
    shape_rewards(data.trajectories, plan)
    rewards = [trajectory.reward for trajectory in data.trajectories]
    found = [(group, reward.total) for group, reward in zip(groups, rewards, strict=True) if reward is not None]
    totals = [total for _, total in found]
    batch.baselines = [total for group, total in found for _ in group]
    batch.data.seconds += data.seconds
    batch.metrics["batch/num_groups_without_baseline"] = len(groups) - len(found)
    batch.metrics["reward/greedy"] = sum(totals) / len(totals) if totals else math.nan
    return [group for group, _ in found]


def has_zero_variance(group: Sequence[Trajectory], *, by_turn: bool = False) -> bool:
    """Whether all rewards of these scored episodes are equal; a group of one is."""
    rewards = [trajectory.reward for trajectory in group if trajectory.reward is not None]
    return len({(reward.total, reward.turns if by_turn else ()) for reward in rewards}) <= 1


def shape_rewards(trajectories: Sequence[Trajectory], plan: PPOPlan) -> None:
    """Take the overlong penalty off the rewards, as a part of its own (`overlong`); tokens after the prompt count."""
    if not plan.overlong_penalty:
        return
    for trajectory in trajectories:
        if trajectory.reward is not None:
            share = overlong_penalty(trajectory.num_response, plan.overlong_max_tokens, plan.overlong_buffer_tokens)
            parts = {**trajectory.reward.parts, "overlong": plan.overlong_penalty * share}
            trajectory.reward = Reward(parts=parts, turns=trajectory.reward.turns)


class ShuffledTasks:
    """Pass after pass over a list of tasks, each pass in an order of its own that follows from the seed.

    Further batches of one iteration (`attempt` 1, 2, …) go through passes of their own.
    """

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._tasks = tasks
        self._seed = seed

    def draw(self, iteration: int, num_groups: int, attempt: int = 0) -> list[Task]:
        """The next tasks: every one comes once before any comes again."""
        drawn = []
        for position in range(iteration * num_groups, (iteration + 1) * num_groups):
            epoch, index = divmod(position, len(self._tasks))
            drawn.append(self._tasks[_order(len(self._tasks), self._seed, epoch, attempt)[index]])
        return drawn


def _judged_groups(trajectories: Sequence[Trajectory], group_size: int, first: int) -> list[list[Trajectory]]:
    """Every `group_size` episodes in a row, numbered from `first` on, without those that have no reward."""
    groups: dict[int, list[Trajectory]] = defaultdict(list)
    for index, trajectory in enumerate(trajectories):
        trajectory.group = first + index // group_size
        if trajectory.reward is not None:
            groups[trajectory.group].append(trajectory)
    return list(groups.values())


@functools.lru_cache(maxsize=4)
def _order(num_tasks: int, seed: int, epoch: int, attempt: int) -> list[int]:
    purpose = f"tasks-{seed}-{epoch}" + (f"-{attempt}" if attempt else "")
    return random.Random(purpose).sample(range(num_tasks), num_tasks)
