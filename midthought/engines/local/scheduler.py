"""Running `sample` calls of the local engine, and their scheduler. Does not depend on slots or tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from midthought.engines.engine import Sampling, Stopper
from midthought.types import Completion, Finish


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was created."""

    num_prefilled_tokens: int = 0
    """Computed tokens of prompts, results and replies, including those recomputed after a cache was lost."""
    num_reused_tokens: int = 0
    """Tokens of requests that were already in their slots."""
    num_shared_tokens: int = 0
    """Tokens copied from the slot of another sequence with the same prefix."""
    num_sampled_tokens: int = 0
    num_forward_passes: int = 0
    num_evicted: int = 0
    """Waiting episodes whose cache was evicted because there were too few slots."""
    num_relaid: int = 0
    """Times that the cache was rebuilt with fewer, longer slots because memory was short."""


@dataclass(slots=True, eq=False)
class Request:
    """A running call of `sample`."""

    episode: int
    token_ids: list[int]
    num_given: int
    max_tokens: int
    sampling: Sampling
    stopper: Stopper | None
    future: asyncio.Future[Completion]
    num_cached: int = 0
    """Number of `token_ids` in the cache; valid while the request is running."""
    num_deferred: int = 0
    """How often it has waited for another request to compute their common prefix."""
    logprobs: list[float] = field(default_factory=list)

    def finish_after(self, token_id: int, eos_token_ids: frozenset[int]) -> Finish | None:
        """Returns the finish reason if sampling ends with this token, the last of `token_ids`, else None."""
        if token_id in eos_token_ids:
            return Finish.END
        if self.stopper is not None and self.stopper.feed(token_id):
            return Finish.CALL
        return Finish.LENGTH if len(self.logprobs) >= self.max_tokens else None


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
