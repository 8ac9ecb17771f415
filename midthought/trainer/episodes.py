"""The episodes that a trainer receives: checks them, restores those of a checkpoint, and logs those that failed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from midthought.errors import SettingsError
from midthought.rollout.local_rollouts import Rollouts
from midthought.rollout.rollout_batch import TaskStream, task_of_group
from midthought.types import RolloutData, StopReason, Trajectory

_log = logging.getLogger(__name__)

NOTHING_OPEN: Mapping[str, Any] = {"next_position": 0, "postponed": [], "groups": [], "journal": 0}
"""State of a stream at the start of a run; what follows is in the journal."""


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
    found = found or {**NOTHING_OPEN, "journal": None}
    if num_again := source.stream.restore(found, functools.partial(task_of_group, tasks)):
        _log.warning(
            "%d groups of the checkpoint start again: they are too old for this training.max_staleness", num_again
        )


def tell_failures(where: str, data: RolloutData | list[Trajectory]) -> None:
    """Logs how many episodes failed, and the error of the first one."""
    failed = [trajectory for trajectory in data if trajectory.stop_reason is StopReason.FAILED]
    if failed:
        _log.warning("%s: %d of %d episodes failed; the first: %s", where, len(failed), len(data), failed[0].error)
