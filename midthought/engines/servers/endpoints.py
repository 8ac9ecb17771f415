"""Load balancing over several servers of one model, with pauses after failures. Does not depend on HTTP."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from midthought.engines.engine import Sampling
from midthought.engines.weight_sync.publication import Publication
from midthought.errors import SettingsError
from midthought.http.network import socket_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogprobMode:
    """Which sampling settings a server's log-probabilities include."""

    temperature: bool = False
    truncation: bool = False
    """Normalized over the tokens that `top_p`, `top_k` and `min_p` keep."""
    penalty: bool = False
    """`repetition_penalty`."""

    def covers(self, sampling: Sampling) -> bool:
        """Whether the log-probabilities refer to the sampling distribution; for greedy sampling, at temperature 1."""
        if sampling.repetition_penalty != 1 and not self.penalty:
            return False
        if sampling.temperature == 0:
            return True
        is_whole = sampling.top_p == 1 and sampling.top_k == 0 and sampling.min_p == 0
        return (self.temperature or sampling.temperature == 1) and (self.truncation or is_whole)


@dataclass(slots=True, eq=False)
class Endpoint:
    """One server: its address, its properties and its state. Times are from `time.monotonic`."""

    url: str
    model: str | None = None
    """Its name of our model; None before the first check."""
    max_seq_len: int = 0
    logprob_mode: LogprobMode | None = None
    """None before it was probed."""
    has_warned: bool = False
    """Whether the warning about inexact log-probabilities was given."""
    loaded: Publication | None = None
    """The verified weights that it has loaded; None: those from its start, or unknown ones."""
    released: list[str] = field(default_factory=list)
    """Parts of its GPU memory that it has released (`Dialect.sleep`)."""
    num_taken: int = 0
    """Requests that it is processing or that wait for it."""
    num_failures: int = 0
    """Consecutive failures without a token between them; failures of one outage count once."""
    failed_at: float = 0.0
    resting_until: float = 0.0
    """End of the pause after a failure; a token from the server ends it earlier."""
    busy_until: float = 0.0
    """End of the pause that the server requested itself."""
    last_error: str = ""

    @property
    def free_at(self) -> float:
        return max(self.resting_until, self.busy_until)


class Endpoints:
    """The servers of one engine. A new episode goes to the server with the fewest requests. It stays on that server, whose
    prefix cache contains it, while the server works.

    After a failure a server pauses for `pause_seconds`; each further consecutive failure doubles the pause, up to
    `max_pause_seconds`, with jitter. After the pause one request at a time tests it, until it returns a token (a half-open
    circuit breaker).

    If no server returns a token for `max_outage_seconds` after a failure, requests fail without waiting (`is_given_up`), until
    a server returns a token.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        pause_seconds: float,
        max_pause_seconds: float,
        max_outage_seconds: float = math.inf,
    ) -> None:
        self.all = tuple(Endpoint(url) for url in dict.fromkeys(map(_clean, urls)))
        if not self.all:
            raise SettingsError("base_url is empty; write http://HOST:PORT or unix:/PATH, or a list of them")
        self._pause_seconds = pause_seconds
        self._max_pause_seconds = max_pause_seconds
        self._max_outage_seconds = max_outage_seconds
        self._outage_since = math.inf
        """Start time of the first failed request since the last token of any server."""
        self._home: dict[int, Endpoint] = {}

    @property
    def is_given_up(self) -> bool:
        """Whether no server has returned a token for too long."""
        return self._outage_seconds_left <= 0

    @property
    def _outage_seconds_left(self) -> float:
        return self._outage_since + self._max_outage_seconds - time.monotonic()

    def is_free(self, endpoint: Endpoint) -> bool:
        """Whether a request may be sent now: the server does not pause, or all servers are given up."""
        return endpoint.free_at <= time.monotonic() or self.is_given_up

    async def take(self, episode: int) -> Endpoint:
        """Returns the server for this episode's next request. Waits while all servers pause."""
        while not (free := self._free()):
            rest = min(endpoint.free_at for endpoint in self.all) - time.monotonic()
            rest = max(0.0, rest) + random.uniform(0.0, self._pause_seconds)
            await asyncio.sleep(max(0.0, min(rest, self._outage_seconds_left)))
        endpoint = self._home.get(episode)
        if endpoint not in free:
            endpoint = self._home[episode] = min(free, key=lambda each: each.num_taken)
        return endpoint

    def _free(self) -> list[Endpoint]:
        free = [endpoint for endpoint in self.all if self.is_free(endpoint)]
        return [endpoint for endpoint in free if not (endpoint.num_failures and endpoint.num_taken)] or free

    def forget(self, episode: int) -> None:
        """Releases the episode's server: the episode has ended, or a new one starts."""
        self._home.pop(episode, None)

    def succeeded(self, endpoint: Endpoint) -> None:
        """Records that the server returned a token."""
        endpoint.num_failures = 0
        endpoint.resting_until = 0.0
        self._outage_since = math.inf

    def failed(
        self, endpoint: Endpoint, reason: str, *, started_at: float, is_busy: bool = False, wait_seconds: float = 0.0
    ) -> None:
        """Records the failure of a request sent at `started_at`, and pauses the server; simultaneous failures count once.

        A server that reports `is_busy` pauses for the `wait_seconds` that it requested, even if it returns tokens meanwhile.
        """
        endpoint.last_error = reason
        self._outage_since = math.inf if is_busy else min(self._outage_since, started_at)
        now = time.monotonic()
        if started_at < endpoint.failed_at:
            return
        logger.warning("%s: %s", endpoint.url, reason)
        endpoint.failed_at = now
        endpoint.num_failures += 1
        pause = self._pause_seconds * 2 ** min(endpoint.num_failures - 1, 30)
        pause = min(pause, self._max_pause_seconds) * random.uniform(0.5, 1.0)
        if is_busy:
            endpoint.busy_until = now + min(wait_seconds or pause, self._max_pause_seconds)
        else:
            endpoint.resting_until = now + pause


def _clean(url: str) -> str:
    """Returns the address without `/v1`, which users often add."""
    if isinstance(url, str) and socket_path(url) is not None:
        return url
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_address = is_address and not (parts.query or parts.fragment or re.search(r"\s", url))
    except (ValueError, AttributeError, TypeError):
        is_address = False
    if not is_address:
        raise SettingsError(f"base_url={url!r} is not an address; write http://HOST:PORT or unix:/PATH")
    if parts.username or parts.password:
        raise SettingsError(
            f"the base_url of {parts.hostname} contains a password; store it in a variable and set api_key_env"
        )
    return url.rstrip("/").removesuffix("/v1")
