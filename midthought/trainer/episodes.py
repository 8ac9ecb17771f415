"""Selects the episodes to train on from the episodes that a trainer receives, and logs failed episodes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from midthought.config import TrainingConfig
from midthought.errors import SettingsError
from midthought.rollout.local_rollouts import Rollouts
from midthought.rollout.rollout_batch import TaskStream, select, task_of_group
from midthought.types import RolloutBatch, RolloutData, StopReason, Trajectory

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
    """Selects the episodes to train on (`select`). Raises SettingsError if there is no episode, RecordError for one without
    tokens."""
    if not len(data):
        raise SettingsError("there is nothing to learn from: the data holds no episode")
    for trajectory in data:
        trajectory.require_tokens()
    return select(data, training, rolled_out)


def restore_stream(source: Rollouts, tasks: TaskStream, state: Mapping[str, Any]) -> None:
    """Continues the episodes in a checkpoint's state. Without a stream they are dropped, with a warning."""
    found = state.get("stream")
    if source.stream is None:
        if found and found["groups"]:
            num_dropped = sum(len(group["episodes"]) for group in found["groups"])
            _log.warning(
                "%d episodes of the checkpoint that are not trained on yet are dropped; training.max_staleness continues them",
                num_dropped,
            )
        return
    found = found or {"next_position": 0, "postponed": [], "groups": []}
    if num_again := source.stream.restore(found, functools.partial(task_of_group, tasks)):
        _log.warning(
            "%d groups of the checkpoint start again: they are too old for this training.max_staleness", num_again
        )


def tell_failures(where: str, data: RolloutData | list[Trajectory]) -> None:
    """Logs how many episodes failed, and the error of the first one."""
    failed = [trajectory for trajectory in data if trajectory.stop_reason is StopReason.FAILED]
    if failed:
        _log.warning("%s: %d of %d episodes failed; the first: %s", where, len(failed), len(data), failed[0].error)
