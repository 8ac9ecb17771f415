"""Collects one iteration's episodes, or takes those that a trainer is given, and selects the ones to train on.

Drops zero-variance groups, resamples (DAPO's dynamic sampling), and takes what is ready from a stream of episodes. Does not
depend on a particular engine or task: tasks come from a `TaskStream`, episodes from `EpisodeSource`.
"""

from __future__ import annotations

import functools
import logging
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from midthought.algo.shaping import overlong_penalty
from midthought.algo.tensors import TIE
from midthought.config import RecipeConfig, TrainingConfig
from midthought.errors import SettingsError
from midthought.rollout.episode_source import EpisodeSource
from midthought.rollout.in_flight import InFlightEpisodes
from midthought.types import RolloutData, Selection, StopReason, Task, Trajectory

_log = logging.getLogger(__name__)
Drawn = TypeVar("Drawn")


class TaskStream(Protocol):
    """Gives the tasks of each iteration."""

    def draw(self, iteration: int, num_groups: int, attempt: int = 0) -> list[Task]:
        """Returns one task per group; the same arguments give the same tasks. `attempt` counts the batches of an iteration."""
        ...


def collect(
    source: EpisodeSource, tasks: TaskStream, config: RecipeConfig, iteration: int, num_left: int | None = None
) -> Selection:
    """Plays the episodes of an iteration, and selects those to train on: from the source's stream if there is one
    (`training.max_staleness`), else in batches. `num_left`: iterations that follow; None: unlimited."""
    if source.stream is not None:
        return _from_stream(source.stream, tasks, config, iteration, num_left)
    return _in_batches(source, tasks, config, iteration)


# -- episodes that are given -----------------------------------------------------------------------------------


def as_rollout(data: RolloutData | Iterable[Trajectory], policy_version: int = 0) -> RolloutData:
    """Returns a trainer's episodes, given as a rollout, or one by one (then trained on from this version).

    Raises SettingsError for anything else and if there is no episode, RecordError for one without tokens.
    """
    if not isinstance(data, RolloutData):
        given = list(data) if isinstance(data, Iterable) else [data]
        data = RolloutData(trajectories=given, policy_version=policy_version)
    for trajectory in data:
        if not isinstance(trajectory, Trajectory):
            raise SettingsError(
                f"data: {trajectory!r:.80} is no Trajectory; give what rollout() gives, or a list of trajectories"
            )
        trajectory.require_tokens()
    if not len(data):
        raise SettingsError("there is nothing to learn from: the data holds no episode")
    return data


def tell_failures(where: str, data: RolloutData | list[Trajectory]) -> None:
    """Logs how many episodes failed, and the error of the first one."""
    failed = [trajectory for trajectory in data if trajectory.stop_reason is StopReason.FAILED]
    if failed:
        _log.warning("%s: %d of %d episodes failed; the first: %s", where, len(failed), len(data), failed[0].error)


# -- selection ---------------------------------------------------------------------------------------------------


def select(data: RolloutData, training: TrainingConfig, played: Selection | None) -> Selection:
    """Selects the episodes to train on by their current rewards. `played`: the last rollout, if there is one.

    Leaves out episodes without a reward (they failed), zero-variance groups (`is_zero_variance`), with `keep_best` all but the
    best of a group, and the groups of `played` beyond `training.batch_size`. Metrics are copied from `played` if all episodes
    are from it. Added, if they apply: `batch/num_flat_groups` (zero-variance groups), `batch/kept_fraction` (of `keep_best`).
    Raises SettingsError if other episodes of one group have different prompts, and the estimator compares them.
    """
    own = {id(trajectory) for trajectory in played.data} if played is not None else set()
    known = played if all(id(trajectory) in own for trajectory in data) else None
    groups, num_flat = trained_groups(data.trajectories, training)
    if known is not None:
        groups = groups[: training.num_groups]
    for first, *others in groups if known is None and "groups" in training.needs else ():
        if other := next((each for each in others if each.task.messages() != first.task.messages()), None):
            two = f"{first.task.prompt[:40]!r} and {other.task.prompt[:40]!r}"
            raise SettingsError(
                f"group {first.group} has episodes of different prompts, {two}, and {training.adv_estimator} compares the "
                "episodes of a group: set trajectory.group to another number for each task"
            )
    usable = [trajectory for group in groups for trajectory in group]
    metrics = dict(known.metrics) if known is not None else {}
    if "groups" in training.needs:
        metrics["batch/num_flat_groups"] = num_flat
    if training.adv_estimator in training.selecting:
        best = [trajectory for group in groups for trajectory in best_of(group)]
        metrics["batch/kept_fraction"] = len(best) / max(len(usable), 1)
        usable = best
    is_recorded = known is None or known.is_recorded
    return Selection(data=data, usable=usable, is_recorded=is_recorded, metrics=metrics)


def trained_groups(trajectories: Sequence[Trajectory], training: TrainingConfig) -> tuple[list[list[Trajectory]], int]:
    """Returns the groups that can be trained on, without episodes that have no reward, and the number of zero-variance groups."""
    groups: dict[int, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.reward is not None:
            groups[trajectory.group].append(trajectory)
    kept = [group for group in groups.values() if not is_zero_variance(group, training)]
    return kept, len(groups) - len(kept)


def is_zero_variance(group: Sequence[Trajectory], training: TrainingConfig) -> bool:
    """Whether the estimator compares episodes within a group and all rewards of this group are equal (up to rounding, `TIE`).

    An estimator that gives credit to turns or calls also compares the rewards of each turn and call. With a teacher, every
    group is trained on.
    """
    if "groups" not in training.needs or training.teacher:
        return False
    by_step = bool(training.needs & {"turns", "calls"})
    rewards = [trajectory.reward for trajectory in group if trajectory.reward is not None]
    steps = {(reward.turns, reward.calls) if by_step else () for reward in rewards}
    totals = [reward.total for reward in rewards]
    return len(steps) <= 1 and (not totals or math.isclose(min(totals), max(totals), rel_tol=TIE))


def best_of(group: Sequence[Trajectory]) -> list[Trajectory]:
    """Returns the episodes with the highest reward of a group; all of them if several are equal."""
    totals = [trajectory.reward.total if trajectory.reward is not None else -math.inf for trajectory in group]
    return [each for each, total in zip(group, totals, strict=True) if math.isclose(total, max(totals), rel_tol=TIE)]


def shape_rewards(trajectories: Sequence[Trajectory], config: RecipeConfig) -> None:
    """Adds the overlong penalty to the rewards, as the part `overlong`. Only tokens after the prompt count."""
    num_tokens = config.num_overlong_tokens
    if not num_tokens:
        return
    for trajectory in trajectories:
        if trajectory.reward is not None:
            share = overlong_penalty(trajectory.num_response, config.inference.max_tokens, num_tokens)
            parts = {**trajectory.reward.parts, "overlong": share}
            trajectory.reward = replace(trajectory.reward, parts=parts)


# -- batches -----------------------------------------------------------------------------------------------------


def _in_batches(source: EpisodeSource, tasks: TaskStream, config: RecipeConfig, iteration: int) -> Selection:
    """Runs whole batches until enough groups can be trained on, at most `training.max_dynamic_batches`.

    Source of dynamic sampling: DAPO, arXiv 2503.14476, eq. 11. Metrics with dynamic sampling: `batch/num_rollouts`,
    `batch/num_surplus_groups`.
    """
    training, num_groups, group_size = config.training, config.training.num_groups, config.training.episodes_per_task
    data = RolloutData()
    metrics: dict[str, float] = {}
    num_kept = num_rollouts = 0
    most = training.max_dynamic_batches if "groups" in training.needs else 1
    while num_rollouts < most and num_kept < num_groups:
        drawn = [task for task in tasks.draw(iteration, num_groups, num_rollouts) for _ in range(group_size)]
        again: dict[str, Any] = {"attempt": num_rollouts} if num_rollouts else {}
        played = source.rollout(drawn, iteration=iteration, group_size=group_size, **again)
        shape_rewards(played.trajectories, config)
        for index, trajectory in enumerate(played):
            trajectory.group = num_rollouts * num_groups + index // group_size
        num_kept += len(trained_groups(played.trajectories, training)[0])
        num_rollouts += 1
        data.trajectories += played.trajectories
        data.seconds += played.seconds
        data.policy_version = played.policy_version
    if training.max_dynamic_batches > 1:
        metrics = {"batch/num_rollouts": num_rollouts, "batch/num_surplus_groups": max(num_kept - num_groups, 0)}
    return select(data, training, Selection(data=data, metrics=metrics))


# -- from the stream ----------------------------------------------------------------------------------------------


class RolloutStopped(KeyboardInterrupt):
    """A stop was requested while a batch waited for episodes. They remain open, those it had taken, too."""


def _from_stream(
    stream: InFlightEpisodes, tasks: TaskStream, config: RecipeConfig, iteration: int, num_left: int | None
) -> Selection:
    """Takes finished groups until the batch is complete (`Pace`); others go on in later iterations. Each is taken whole and once.

    A zero-variance group that dynamic sampling drops is replaced at once. Sources: Kimi k1.5 (arXiv 2501.12599, section 2.6.2),
    AReaL (arXiv 2505.24298). Metrics: `staleness`, `staleness/num_open` (groups left for later iterations, finished or not),
    `staleness/num_dropped` (groups that start again: too old, or of weights that are lost), `time/waiting` (seconds in which
    nothing was sampled, because every episode waited for a tool or its environment).
    """
    pace, size, batch = stream.pace, config.training.episodes_per_task, stream.engine.policy_version
    stream.next_position = max(stream.next_position, iteration * pace.num_groups)
    draw = functools.partial(task_of_group, tasks)

    data = RolloutData(policy_version=batch)
    num_kept = num_taken = 0
    started, busy_before = time.perf_counter(), stream.engine.busy_seconds
    stream.begin_batch(iteration)
    try:
        while True:
            room = pace.room(num_kept, num_taken)
            while (room or stream.overlaps) and pace.may_start(stream.deadlines, batch, batch, room, num_left):
                stream.begin(draw, size)
            if not room:  # these groups run while the learner works
                break
            if not (groups := stream.take(batch, room)):
                raise RolloutStopped
            for group in groups:
                num_taken += 1
                data.trajectories += group
                shape_rewards(group, config)
                num_kept += len(trained_groups(group, config.training)[0])
    except BaseException:
        stream.put_back()
        raise
    finally:
        if not stream.overlaps:
            stream.pause()
    data.seconds = time.perf_counter() - started
    metrics: dict[str, float] = {"staleness/num_open": stream.num_open, "staleness/num_dropped": stream.num_dropped}
    metrics["time/waiting"] = max(0.0, data.seconds - (stream.engine.busy_seconds - busy_before))
    stream.num_dropped = 0
    chosen = select(data, config.training, Selection(data=data, metrics=metrics))
    return replace(chosen, metrics=chosen.metrics | staleness(chosen.usable, batch))


def staleness(trajectories: Sequence[Trajectory], policy_version: int) -> dict[str, float]:
    """Age of the policy tokens, in updates, when the version `policy_version` is about to be updated; 0 without any token.

    `staleness/mean`, `staleness/max`, and `staleness/share_N`: share of tokens that are N updates old.
    """
    ages = Counter(
        policy_version - version
        for trajectory in trajectories
        for segment in trajectory.segments
        for version, is_own in zip(segment.policy_versions, segment.loss_mask, strict=True)
        if is_own
    )
    num_tokens = max(ages.total(), 1)
    shares = {f"staleness/share_{age}": ages[age] / num_tokens for age in range(max(ages, default=-1) + 1)}
    mean = sum(age * number for age, number in ages.items()) / num_tokens
    return {"staleness/mean": mean, "staleness/max": max(ages, default=0), **shares}


def task_of_group(tasks: TaskStream, position: int) -> Task:
    """The task of group `position` of the run. Drawing one group at a time makes it independent of the batch size."""
    return tasks.draw(position, 1)[0]


# -- tasks -------------------------------------------------------------------------------------------------------


class ShuffledTasks(Generic[Drawn]):
    """Epoch after epoch over a list of tasks (or of other objects), each in its own order, which follows from the seed.

    Further batches of one iteration (`attempt` 1, 2, …) have their own epochs.
    """

    def __init__(self, tasks: Sequence[Drawn], seed: int) -> None:
        self.tasks = tasks
        self._seed = seed

    def draw(self, iteration: int, num_groups: int, attempt: int = 0) -> list[Drawn]:
        """Returns the next tasks. Each task comes once before any comes again."""
        drawn = []
        for position in range(iteration * num_groups, (iteration + 1) * num_groups):
            epoch, index = divmod(position, len(self.tasks))
            drawn.append(self.tasks[_order(len(self.tasks), self._seed, epoch, attempt)[index]])
        return drawn


@functools.lru_cache(maxsize=4)
def _order(num_tasks: int, seed: int, epoch: int, attempt: int) -> list[int]:
    purpose = f"tasks-{seed}-{epoch}" + (f"-{attempt}" if attempt else "")
    return random.Random(purpose).sample(range(num_tasks), num_tasks)
