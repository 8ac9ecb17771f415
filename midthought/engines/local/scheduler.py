"""Which requests wait, which may join the next passes, and which run; in deterministic mode, who is admitted to a wave.

Knows neither slots nor tensors nor the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from midthought.engines.local.request import Request


class Scheduler:
    """Requests on their way: from `waiting` into the `wave`, and from there, with a slot, to those that are `running`.

    In deterministic mode a wave takes the requests of all admitted episodes at once and ends when all of them have ended.
    """

    def __init__(self, *, deterministic: bool) -> None:
        self.deterministic = deterministic
        self.waiting: list[Request] = []
        self.wave: list[Request] = []
        self.running: list[Request] = []
        self.open: set[int] = set()
        """Episodes that will ask for samples."""
        self.closed: set[int] = set()
        """In deterministic mode: those that have ended since the last wave, and still hold their slots."""
        self._admitted: set[int] = set()

    def __iter__(self) -> Iterator[Request]:
        """All of them, those that run first."""
        yield from (*self.running, *self.wave, *self.waiting)

    @property
    def num_away(self) -> int:
        """Open episodes that ask for nothing now; their tools are running, say."""
        return len(self.open) - len(self.running) - len(self.wave) - len(self.waiting)

    def of(self, episode: int) -> list[Request]:
        """The requests of one episode."""
        return [request for request in self if request.episode == episode]

    def begin(self, max_num_episodes: int, release: Callable[[int], None]) -> bool:
        """Take waiting requests into the wave. False where there is nothing to run now.

        Args:
            max_num_episodes: in deterministic mode, most episodes that are admitted at once.
            release: takes the slot of an episode that has ended.
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
        """Open episodes take the places of those that have ended, lowest numbers first."""
        for episode in sorted(self.closed):
            release(episode)
        self._admitted -= self.closed
        self.closed.clear()
        room = max(0, max_num_episodes - len(self._admitted))
        self._admitted.update(sorted(self.open - self._admitted)[:room])

    def start_over(self) -> None:
        """What is running is to be computed anew, and is the first to be."""
        self.wave[:0] = self.running
        self.running.clear()

    def keep(self, is_kept: Callable[[Request], bool]) -> None:
        """Forget all others."""
        for requests in (self.waiting, self.wave, self.running):
            requests[:] = [request for request in requests if is_kept(request)]
