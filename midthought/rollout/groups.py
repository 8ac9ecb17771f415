"""A group of episodes of one task: its start, its record as JSON, and how it starts again from its record; and the rule for when
groups start and are taken (`Pace`), which depends only on counts. `in_flight` applies it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from midthought.config import RecipeConfig
from midthought.rollout.episode import EpisodeEnvironment, RolloutParts
from midthought.rollout.trajectory_json import trajectory_from_json, trajectory_to_json
from midthought.types import StopReason, Task, Trajectory
from midthought.types.task import number_of


@dataclass(slots=True, eq=False)
class Group:
    """Episodes of one task that were started and not yet taken."""

    position: int
    """Number of the group in the whole run."""
    version: int
    """Version of the policy at its start: no token of it is older."""
    episodes: list[Trajectory]
    num_running: int = 0
    taken: tuple[int, int] | None = None
    """Iteration and version of the batch that takes it, if that has done it before: in a process that was killed, or
    interrupted."""
    newest: int | None = None
    """Newest version of a token when it was restored, -1 without one; None: it was started here."""

    def to_json(self) -> dict[str, Any]:
        episodes = [trajectory_to_json(trajectory) for trajectory in self.episodes]
        return {"position": self.position, "version": self.version, "episodes": episodes}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        episodes = [trajectory_from_json(episode) for episode in row["episodes"]]
        versions = (segment.policy_versions for trajectory in episodes for segment in trajectory.segments)
        newest = max(map(max, filter(None, versions)), default=-1)
        return cls(row["position"], row["version"], episodes, newest=newest)

    def start_again(self, parts: RolloutParts, seed: int, draw: Callable[[int], Task]) -> dict[int, RolloutParts]:
        """Replaces the records of a restored group's unfinished episodes by new trajectories. Returns the parts of each.

        They repeat their records if all of them can. Otherwise they start from the task, which `draw` returns; if its prompt has
        changed, so do the finished ones.
        """
        records = dict(enumerate(self.episodes))
        again = {
            member: replace(with_environment(parts, record.task), record=record)
            for member, record in records.items()
            if record.reward is None and record.stop_reason is not StopReason.FAILED
        }
        if all(_follows_from_record(own, records[member]) for member, own in again.items()):
            for member in again:
                self.episodes[member] = _replayed(records[member])
            return again
        task = draw(self.position)
        members = list(records if task.messages() != records[0].task.messages() else again)
        fresh = fresh_episodes(parts, task, self.position, len(records), seed)
        for member in members:
            self.episodes[member] = fresh[member]
        return {member: with_environment(parts, task) for member in members}


def fresh_episodes(parts: RolloutParts, task: Task, position: int, group_size: int, seed: int) -> list[Trajectory]:
    """Returns the trajectories of a group that has not started. Raises if the prompt cannot be rendered."""
    prompt_ids = parts.renderer.prompt(parts.messages(task))
    seeds = [seed_of(seed, "group", position, member) for member in range(group_size)]
    return [Trajectory(task, prompt_ids, seed=own, group=position) for own in seeds]


def with_environment(parts: RolloutParts, task: Task) -> RolloutParts:
    """Returns the parts with an environment that is created now, because some exist only for the newest task.

    If creating it raises, the error is raised when the episode starts, and the episode fails.
    """
    try:
        environment = parts.environment(task)
    except Exception as error:
        return replace(parts, environment=functools.partial(_raise, error))
    return replace(parts, environment=lambda _: environment)


def _raise(error: Exception, task: Task) -> EpisodeEnvironment:
    raise error


def _replayed(record: Trajectory) -> Trajectory:
    """Returns the trajectory of an unfinished episode at its start, with what its replay does not count again."""
    first = record.segments[0]
    trajectory = Trajectory(record.task, first.token_ids[: first.spans[0].end], seed=record.seed, group=record.group)
    trajectory.num_cut = record.num_cut
    trajectory.tool_seconds, trajectory.engine_seconds = record.tool_seconds, record.engine_seconds
    return trajectory


def _follows_from_record(parts: RolloutParts, record: Trajectory) -> bool:
    """Whether the episode can be replayed from its record: neither its environment nor a tool that it called has state."""
    try:
        environment = parts.environment(record.task)
    except Exception:
        return False
    called = {event.call.tool_name for event in record.tool_events}
    registry = parts.executor.registry
    if any(tool is not None and tool.is_stateful for tool in map(registry.get, filter(None, called))):
        return False
    return len(record.segments) == 1 and getattr(environment, "follows_from_record", False)


def seed_of(*parts: object) -> int:
    """Returns a seed that depends only on these values."""
    return number_of(parts, 8) >> 1


# -- when groups start and are taken ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """When the groups of one run start and are taken, so that no token is too old when it is trained on. A group is open from its
    start until it is taken, also after it has finished.

    Every group has a deadline: the last batch that may train on it, which is the version of the policy at its start plus the
    largest staleness. Batch n is the one that trains version n, so a group taken by its deadline holds no token that is more than
    `max_staleness` updates old. The rule is that of earliest-deadline-first scheduling, in which every batch serves
    `num_groups` groups: as long as `is_kept` holds, every open group can still be taken in time, whatever finishes first.
    """

    num_groups: int
    """Groups per batch."""
    max_staleness: int
    """Largest number of updates between the version that sampled a token and the version that is trained on it."""
    max_open: int
    """Largest number of open groups."""
    max_taken: int
    """Groups after which a batch ends, those without variance included."""

    @classmethod
    def of(cls, config: RecipeConfig) -> Pace:
        training = config.training
        return cls(
            num_groups=training.num_groups,
            max_staleness=training.max_staleness,
            max_open=math.ceil(config.num_in_flight * training.num_groups),
            max_taken=training.num_groups * training.max_dynamic_batches,
        )

    def room(self, num_kept: int, num_taken: int) -> int:
        """Returns how many groups a batch still needs: `num_kept` of the `num_taken` groups are trained on. 0: it is complete."""
        return min(self.num_groups - num_kept, self.max_taken - num_taken)

    def deadline(self, version: int) -> int:
        """Returns the last batch that may train on a group whose oldest token is of this version."""
        return version + self.max_staleness

    def is_kept(self, deadlines: Sequence[int], batch: int, room: int) -> bool:
        """Whether all open groups can be taken in time if `batch` takes `room` more of them: for every k, at most
        `room + k * num_groups` of their `deadlines` are at most `batch + k`, and none has passed."""
        return all(
            deadline >= batch and number <= room + (deadline - batch) * self.num_groups
            for number, deadline in enumerate(sorted(deadlines), start=1)
        )

    def may_start(self, deadlines: Sequence[int], version: int, batch: int, room: int, num_left: int | None) -> bool:
        """Whether a group may start now, beside open groups with these `deadlines`.

        `num_left`: batches that follow `batch` in this run, so that none starts that nobody will take; None: unlimited.
        """
        most = self.max_open if num_left is None else min(self.max_open, room + num_left * self.num_groups)
        return len(deadlines) < most and self.is_kept([*deadlines, self.deadline(version)], batch, room)

    def may_take(self, deadlines: Sequence[int], deadline: int, batch: int, room: int) -> bool:
        """Whether `batch` may take the group with this `deadline`, one of `deadlines`: the others must still be in time."""
        others = list(deadlines)
        others.remove(deadline)
        return self.is_kept(others, batch, room - 1)
