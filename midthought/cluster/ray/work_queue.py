"""Distributes a rollout's episodes over workers, and decides which are rerun when a worker dies. Does not depend on Ray."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from midthought.errors import EngineError
from midthought.rollout.episode import EpisodeStart
from midthought.types import Trajectory

MAX_WORKER_DEATHS = 3
"""An episode fails if its worker died this many times, the last time while it ran only this episode."""
_MAX_CONSECUTIVE_DEATHS = 8
"""Limit of worker deaths without a finished episode between them, in addition to one death per worker."""

EpisodeIndices = tuple[int, ...]
"""Indices of the episodes that one worker runs concurrently."""


class WorkQueue:
    """The episodes of one rollout, split into whole groups, as evenly as possible.

    Unfinished episodes of a dead worker are run again: the first time together, because the machine may be the cause; after
    that in halves, so that an episode that kills workers is soon alone.
    """

    def __init__(self, starts: Sequence[EpisodeStart], num_workers: int) -> None:
        self._num_workers = num_workers
        self._done: dict[int, Trajectory] = {}
        self._waiting: deque[EpisodeIndices] = deque(split_by_group(starts, num_workers))
        self._num_deaths: Counter[int] = Counter()
        self._num_consecutive_deaths = 0
        self._num_episodes = len(starts)

    @property
    def is_complete(self) -> bool:
        """Whether every episode has ended."""
        return len(self._done) == self._num_episodes

    @property
    def num_waiting(self) -> int:
        """Number of entries that no worker runs yet."""
        return len(self._waiting)

    def take(self) -> EpisodeIndices:
        """Returns the next episodes for an idle worker."""
        return self._waiting.popleft()

    def end(self, index: int, trajectory: Trajectory) -> None:
        """Stores the trajectory of a finished episode. Raises `EngineError` if the episode was finished before."""
        if index in self._done:
            raise EngineError(f"episode {index} was returned twice")
        self._done[index] = trajectory
        self._num_consecutive_deaths = 0

    def lose(self, part: EpisodeIndices, cause: str) -> list[int]:
        """Queues the unfinished episodes of a dead worker again. Returns the episodes that have failed instead.

        Raises `EngineError` if workers keep dying and no episode finishes.
        """
        left = tuple(index for index in part if index not in self._done)
        self._num_deaths.update(left)
        self._num_consecutive_deaths += 1
        if self._num_consecutive_deaths > _MAX_CONSECUTIVE_DEATHS + self._num_workers:
            raise EngineError(
                f"{self._num_consecutive_deaths} workers died in a row and no episode finished; the last cause: {cause}"
            )
        if len(left) == 1 and self._num_deaths[left[0]] >= MAX_WORKER_DEATHS:
            return list(left)
        is_first = all(self._num_deaths[index] == 1 for index in left)
        half = len(left) if is_first or len(left) == 1 else len(left) // 2
        self._waiting.extend(part for part in (left[:half], left[half:]) if part)
        return []

    def trajectories(self) -> list[Trajectory]:
        """Returns all trajectories in the order of `starts`."""
        return [self._done[index] for index in range(self._num_episodes)]


def split_by_group(starts: Sequence[EpisodeStart], num_workers: int) -> list[EpisodeIndices]:
    """Splits consecutive whole groups into at most `num_workers` parts of nearly equal size."""
    groups: dict[int, list[int]] = {}
    for index, start in enumerate(starts):
        groups.setdefault(start.group, []).append(index)
    parts: list[EpisodeIndices] = []
    left = list(groups.values())
    for num_free in range(num_workers, 0, -1):
        wanted = sum(map(len, left)) / num_free
        part: list[int] = []
        while left and (not part or len(part) + len(left[0]) / 2 <= wanted):
            part += left.pop(0)
        if part:
            parts.append(tuple(part))
    return parts
