"""Scheduler of requests: waiting, ready to join, running. Does not depend on slots, tensors or the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from midthought.engines.local.request import Request


class Scheduler:
    """Moves requests from `waiting` to `wave` (they may join the next pass), and with a slot from there to `running`.

    In deterministic mode a wave takes the requests of all admitted episodes and ends when all of them have ended.
    """

    def __init__(self, *, deterministic: bool) -> None:
        self.deterministic = deterministic
        self.waiting: list[Request] = []
        self.wave: list[Request] = []
        self.running: list[Request] = []
        self.open: set[int] = set()
        """Episodes that may request samples."""
        self.closed: set[int] = set()
        """In deterministic mode: episodes that ended since the last wave and still have their slots."""
        self._admitted: set[int] = set()

    def __iter__(self) -> Iterator[Request]:
        """All requests, running ones first."""
        yield from (*self.running, *self.wave, *self.waiting)

    @property
    def num_away(self) -> int:
        """Open episodes without a request, for example because their tools are running."""
        return len(self.open) - len(self.running) - len(self.wave) - len(self.waiting)

    def of(self, episode: int) -> list[Request]:
        """Returns the requests of one episode."""
        return [request for request in self if request.episode == episode]

    def begin(self, max_num_episodes: int, release: Callable[[int], None]) -> bool:
        """Moves waiting requests into the wave. Returns False if there is nothing to run now.

        Args:
            max_num_episodes: in deterministic mode, maximum number of admitted episodes.
            release: frees the slot of an episode that has ended.
        """
        if not self.deterministic:
            self.wave += self.waiting
            self.waiting.clear()
        elif not self.wave and not self.running:
            self._admit(max_num_episodes, release)
            if self._admitted <= {request.episode for request in self.waiting}:
                self.wave = [
                    request
                    for request in sorted(self.waiting, key=lambda request: request.episode)
                    if request.episode in self._admitted or request.episode not in self.open
                ]
                self.waiting = [request for request in self.waiting if request not in self.wave]
        return bool(self.wave or self.running)

    def _admit(self, max_num_episodes: int, release: Callable[[int], None]) -> None:
        """Replaces ended episodes by open ones, lowest numbers first."""
        for episode in sorted(self.closed):
            release(episode)
        self._admitted -= self.closed
        self.closed.clear()
        room = max(0, max_num_episodes - len(self._admitted))
        self._admitted.update(sorted(self.open - self._admitted)[:room])

    def start_over(self) -> None:
        """Moves running requests back to the front of the wave, to be computed again."""
        self.wave[:0] = self.running
        self.running.clear()

    def keep(self, is_kept: Callable[[Request], bool]) -> None:
        """Removes all other requests."""
        for requests in (self.waiting, self.wave, self.running):
            requests[:] = [request for request in requests if is_kept(request)]
