"""Finds out which of several model servers is slow, and ends its requests if others have room. Does not depend on HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from midthought.engines.servers.endpoints import Endpoint, Endpoints
from midthought.engines.servers.streams import PartialCompletion

logger = logging.getLogger(__name__)

_SLOW_RATIO = 2.0
"""A server is slow if the others write tokens so many times faster."""
_EJECTION_SECONDS = 30.0
"""How long it counts as slow; then it is measured again."""
_PATIENCE = 3.0
"""Times the longest recent wait for a first token: for so long a request waits for it, and a measurement takes. Prefill can
stop all other tokens of a server for that wait."""
_DECAY = 0.99
"""Of the longest recent wait, with each first token."""
_MIN_SECONDS = 0.2
"""Shortest measurement and wait."""
_MIN_TOKENS = 8
"""Number of tokens below which differences are chance: those that the server would have written at the pace of the others."""


@dataclass(slots=True)
class _Pace:
    """Tokens of one server's requests. First tokens count separately: they include the queue and the prefill."""

    since: float = 0.0
    """Start of the present measurement; 0 before it."""
    num_tokens: int = 0
    seconds: float = 0.0
    """Sum over the requests."""
    token_seconds: float = 0.0
    """Mean time per token of one request in the last measurement; 0: none."""
    tokens_per_second: float = 0.0
    """All requests together."""
    first_token_seconds: float = 0.0
    """Longest recent wait."""

    def restart(self, since: float) -> None:
        self.num_tokens, self.seconds, self.since = 0, 0.0, since


@dataclass(slots=True)
class _Progress:
    """One request."""

    num_tokens: int
    """At the last check."""
    counted_from: float
    """Time of that check; before the first token, start of the request."""
    has_token: bool = False


class SlowServers:
    """Outlier detection and ejection, with time per token in place of a load balancer's share of errors.

    A server is slow for 30 s if its requests take twice as long per token as the median of the other servers *and* all its
    requests together receive less than half as many tokens per second: with many more requests than the others it is full,
    not slow. It is also slow if a request waits for its first token three times as long as the longest recent wait elsewhere.
    At most a quarter of the servers, and at least one, can be slow at a time.

    A request of a slow server is moved, not duplicated (hedged): of two copies the one that ends first would be kept, which
    prefers short completions unless servers agree bit for bit.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._paces = {endpoint: _Pace() for endpoint in endpoints.all}

    @contextlib.asynccontextmanager
    async def watch(self, endpoint: Endpoint, draft: PartialCompletion) -> AsyncIterator[None]:
        """Measures a request, and ends the block as soon as the server is slow and another one has room."""
        if len(self._paces) == 1:
            yield
            return
        if endpoint.num_taken <= 1:  # it was idle
            self._paces[endpoint].restart(0.0)
        loop = asyncio.get_running_loop()
        progress = _Progress(len(draft.token_ids), time.monotonic())
        timer: asyncio.TimerHandle

        def check() -> None:
            nonlocal timer
            self._measure(endpoint, progress, len(draft.token_ids))
            if self._endpoints.is_slow(endpoint):
                leaving.reschedule(loop.time())
            else:
                timer = loop.call_later(self._check_seconds(), check)

        try:
            async with asyncio.timeout(None) as leaving:
                timer = loop.call_later(self._check_seconds(), check)
                try:
                    yield
                finally:
                    timer.cancel()
                    self._measure(endpoint, progress, len(draft.token_ids))
        except TimeoutError:
            if not leaving.expired():
                raise

    def _check_seconds(self) -> float:
        """Returns a random time, so that requests leave one after the other, while there is room."""
        return min(1.0, self._window_seconds() / 4) * random.uniform(0.5, 1.0)

    def _others(self, endpoint: Endpoint) -> list[_Pace]:
        return [pace for other, pace in self._paces.items() if other is not endpoint]

    def _patience(self, endpoint: Endpoint) -> float:
        """Returns how long a request may wait for its first token; infinite if the other servers returned none yet."""
        longest = max(pace.first_token_seconds for pace in self._others(endpoint))
        return max(_PATIENCE * longest, _MIN_SECONDS) if longest else math.inf

    def _window_seconds(self) -> float:
        """Returns the length of a measurement."""
        waits = [seconds for pace in self._paces.values() if (seconds := pace.first_token_seconds)]
        return max(_PATIENCE * statistics.median(waits), _MIN_SECONDS) if waits else _MIN_SECONDS

    def _measure(self, endpoint: Endpoint, progress: _Progress, num_tokens: int) -> None:
        """Adds the time since the last check of a request and the tokens that it has received meanwhile."""
        now, pace = time.monotonic(), self._paces[endpoint]
        num_new, seconds = num_tokens - progress.num_tokens, now - progress.counted_from
        if num_new or progress.has_token:
            progress.num_tokens, progress.counted_from = num_tokens, now
        if progress.has_token:
            pace.num_tokens += num_new
            pace.seconds += seconds
            self._judge(endpoint, now)
        elif num_new:
            progress.has_token = True
            pace.first_token_seconds = max(seconds, _DECAY * pace.first_token_seconds)
        elif seconds > self._patience(endpoint):
            self._eject(endpoint, now, f"no token for {seconds:.1f} s")

    def _judge(self, endpoint: Endpoint, now: float) -> None:
        """Ends a measurement that is long enough, and compares it with the last ones of the other servers."""
        pace = self._paces[endpoint]
        pace.since = pace.since or now
        if now - pace.since < self._window_seconds():
            return
        others = [other for other in self._others(endpoint) if other.token_seconds]
        usual_seconds = statistics.median(other.token_seconds for other in others) if others else math.inf
        if max(pace.num_tokens, pace.seconds / usual_seconds) < _MIN_TOKENS:
            return
        pace.token_seconds = endpoint.token_seconds = pace.seconds / max(pace.num_tokens, 1)
        pace.tokens_per_second = pace.num_tokens / (now - pace.since)
        pace.restart(now)
        if others and pace.token_seconds > _SLOW_RATIO * usual_seconds:
            usual_rate = statistics.median(other.tokens_per_second for other in others)
            if pace.tokens_per_second * _SLOW_RATIO < usual_rate:
                self._eject(endpoint, now, f"{pace.token_seconds:.2g} s per token, others {usual_seconds:.2g} s")

    def _eject(self, endpoint: Endpoint, now: float, reason: str) -> None:
        """Makes it slow from now on, unless too many others are."""
        num_others = sum(other.slow_until > now for other in self._paces if other is not endpoint)
        if num_others >= max(1, len(self._paces) // 4):
            return
        if endpoint.slow_until <= now:
            logger.warning(
                "%s is slow (%s): others take its requests for %g s", endpoint.url, reason, _EJECTION_SECONDS
            )
        endpoint.slow_until = now + _EJECTION_SECONDS
