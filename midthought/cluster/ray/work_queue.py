"""Who runs which episodes, and what becomes of them where a worker dies. Knows no Ray, no engine and no token."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from midthought.errors import EngineError
from midthought.rollout.episode import EpisodeStart
from midthought.types import Trajectory

MAX_WORKER_DEATHS = 3
"""An episode whose worker died so often, the last time while it ran that episode alone, has failed."""
_MAX_CONSECUTIVE_DEATHS = 8
"""Deaths of the worker group, besides one for each worker, without any episode that ended between them."""

EpisodeIndices = tuple[int, ...]
"""Places of the episodes that one worker runs side by side."""


class WorkQueue:
    """The episodes of one rollout, shared out by whole groups, as evenly as those allow.

    What a dead worker leaves is run again: the first time as it was, for machines die; from then on in halves, so that an
    episode that kills workers is soon alone and takes no other with it.
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
        """WorkQueue that nobody runs."""
        return len(self._waiting)

    def take(self) -> EpisodeIndices:
        """The next share, for a worker that is free."""
        return self._waiting.popleft()

    def end(self, place: int, trajectory: Trajectory) -> None:
        """An episode has ended. EngineError where it had before: none may count twice."""
        if place in self._done:
            raise EngineError(f"episode {place} came back twice")
        self._done[place] = trajectory
        self._num_consecutive_deaths = 0

    def lose(self, share: EpisodeIndices, cause: str) -> list[int]:
        """The worker of a share has died: what it had not ended waits again, but for what is returned, which has failed.

        EngineError where workers die and nothing ends.
        """
        left = tuple(place for place in share if place not in self._done)
        self._num_deaths.update(left)
        self._num_consecutive_deaths += 1
        if self._num_consecutive_deaths > _MAX_CONSECUTIVE_DEATHS + self._num_workers:
            raise EngineError(
                f"{self._num_consecutive_deaths} workers died one after the other and no episode ended; the last one: {cause}"
            )
        if len(left) == 1 and self._num_deaths[left[0]] >= MAX_WORKER_DEATHS:
            return list(left)
        is_first = all(self._num_deaths[place] == 1 for place in left)
        half = len(left) if is_first or len(left) == 1 else len(left) // 2
        self._waiting.extend(part for part in (left[:half], left[half:]) if part)
        return []

    def trajectories(self) -> list[Trajectory]:
        """All of them, in the order of their starts."""
        return [self._done[place] for place in range(self._num_episodes)]


def split_by_group(starts: Sequence[EpisodeStart], num_workers: int) -> list[EpisodeIndices]:
    """At most `num_workers` shares of whole groups, neighbours together, each as near to its part as groups allow."""
    groups: dict[int, list[int]] = {}
    for place, start in enumerate(starts):
        groups.setdefault(start.group, []).append(place)
    shares: list[EpisodeIndices] = []
    left = list(groups.values())
    for num_free in range(num_workers, 0, -1):
        wanted = sum(map(len, left)) / num_free
        share: list[int] = []
        while left and (not share or len(share) + len(left[0]) / 2 <= wanted):
            share += left.pop(0)
        if share:
            shares.append(tuple(share))
    return shares
