"""Selects the episodes to train on from the episodes that a trainer receives, and logs failed episodes."""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from midthought.config import TrainingConfig
from midthought.errors import SettingsError
from midthought.rollout.local_rollouts import Rollouts
from midthought.rollout.rollout_batch import RolloutBatch, TaskStream, is_zero_variance, task_of_group
from midthought.types import RolloutData, StopReason, Trajectory

_log = logging.getLogger(__name__)


def as_rollout(data: RolloutData | Iterable[Trajectory]) -> RolloutData:
    """Converts a trainer's episodes, given one by one or as a rollout. Raises SettingsError for anything else."""
    if isinstance(data, RolloutData):
        return data
    trajectories = list(data) if isinstance(data, Iterable) else [data]
    other = next((each for each in trajectories if not isinstance(each, Trajectory)), None)
    if other is not None:
        raise SettingsError(
            f"data: {other!r:.80} is no Trajectory; give what rollout() gives, or a list of trajectories"
        )
    return RolloutData(trajectories=trajectories)


def sort_episodes(data: RolloutData, training: TrainingConfig, rolled_out: RolloutBatch | None) -> RolloutBatch:
    """Selects the episodes to train on by their current rewards: from the last rollout, changed or not, or from other data.

    Episodes without a reward are left out, then zero-variance groups (`is_zero_variance`), then the surplus of dynamic sampling.
    Raises SettingsError if there is no episode, RecordError for an episode without tokens.
    """
    if not len(data):
        raise SettingsError("there is nothing to learn from: the data holds no episode")
    for trajectory in data:
        trajectory.require_tokens()
    own = {id(trajectory) for trajectory in rolled_out.data} if rolled_out is not None else set()
    is_own = all(id(trajectory) in own for trajectory in data)
    known = rolled_out if is_own else None
    batch = RolloutBatch(data=data, is_recorded=known is None or known.is_recorded)
    batch.metrics = dict(known.metrics) if known is not None else {}
    kept = _judged_groups(data)
    if "groups" in training.needs:
        num_judged = len(kept)
        kept = [group for group in kept if not is_zero_variance(group, training)]
        batch.metrics["batch/num_flat_groups"] = num_judged - len(kept)
    if is_own:
        kept = kept[: training.num_groups]
    batch.usable = [trajectory for group in kept for trajectory in group]
    return batch


def restore_stream(source: Rollouts, tasks: TaskStream, state: Mapping[str, Any]) -> None:
    """Continues the episodes in a checkpoint's state. Without a stream they are dropped, with a warning."""
    found = state.get("stream")
    if source.stream is None:
        if found and found["groups"]:
            num_dropped = sum(len(group["episodes"]) for group in found["groups"])
            _log.warning(
                "%d episodes that the checkpoint carries over are dropped; inference.partial_rollouts=true continues them",
                num_dropped,
            )
        return
    source.stream.restore(found or {"next_position": 0, "groups": []}, functools.partial(task_of_group, tasks))


def tell_failures(where: str, data: RolloutData | list[Trajectory]) -> None:
    """Logs how many episodes failed, and the error of the first one."""
    failed = [trajectory for trajectory in data if trajectory.stop_reason is StopReason.FAILED]
    if failed:
        _log.warning("%s: %d of %d episodes failed; the first: %s", where, len(failed), len(data), failed[0].error)


def _judged_groups(data: RolloutData) -> list[list[Trajectory]]:
    groups: dict[int, list[Trajectory]] = defaultdict(list)
    for trajectory in data:
        if trajectory.reward is not None:
            groups[trajectory.group].append(trajectory)
    return list(groups.values())
