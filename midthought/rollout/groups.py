"""A group of episodes of one task: its start, its record as JSON, and how it starts again from its record.

Does not depend on when groups start and are taken: `in_flight`, `pace`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

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
        members = list(records if task.prompt != records[0].task.prompt else again)
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
