"""Several servers of one model: which of them takes the next request, and which rest after a failure.

Knows addresses, loads and times; nothing of HTTP, tokens or episodes' contents.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from midthought.engines.engine import Sampling
from midthought.engines.servers.publication import Publication
from midthought.errors import SettingsError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recording:
    """What a server's log-probabilities take into account beside the model."""

    temperature: bool = False
    truncation: bool = False
    """Renormalised over the tokens that `top_p`, `top_k` and `min_p` leave."""
    penalty: bool = False
    """`repetition_penalty`."""

    def covers(self, sampling: Sampling) -> bool:
        """Whether they are those of the distribution that is sampled from; greedy ones are those at temperature 1."""
        if sampling.repetition_penalty != 1 and not self.penalty:
            return False
        if sampling.temperature == 0:
            return True
        is_whole = sampling.top_p == 1 and sampling.top_k == 0 and sampling.min_p == 0
        return (self.temperature or sampling.temperature == 1) and (self.truncation or is_whole)


@dataclass(slots=True, eq=False)
class Endpoint:
    """One server: its address, what it said of itself, and how it fares. Times are those of `time.monotonic`."""

    url: str
    model: str | None = None
    """The name that it serves our model under; None until it was asked."""
    max_seq_len: int = 0
    recording: Recording | None = None
    """None until it was tried out."""
    was_warned_of: bool = False
    """That it does not record what was wanted of it."""
    holds: Publication | None = None
    """The weights that it proved to hold; None: those that it was started with, or unknown ones."""
    num_taken: int = 0
    """Requests that it has, or that wait for their turn with it."""
    num_failures: int = 0
    """In a row, without a token between; those of one outage counted once."""
    failed_at: float = 0.0
    resting_until: float = 0.0
    """After a failure; a token from it ends the rest."""
    busy_until: float = 0.0
    """As it asked for itself; only time ends this."""
    last_error: str = ""

    @property
    def free_at(self) -> float:
        return max(self.resting_until, self.busy_until)


class Endpoints:
    """The servers of one engine. An episode stays with its server, whose prefix cache holds it, as long as that lives.

    A server that fails rests for `pause_seconds`, twice as long after each further failure in a row, at most
    `max_pause_seconds`; then it is tried again. All with jitter.

    If no server gives a token for `max_silence_seconds` after a failure, they are given up (`is_given_up`) until one does:
    nobody waits for the end of a rest any more.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        pause_seconds: float,
        max_pause_seconds: float,
        max_silence_seconds: float = math.inf,
    ) -> None:
        self.all = tuple(Endpoint(url) for url in dict.fromkeys(map(_clean, urls)))
        if not self.all:
            raise SettingsError("base_url names no server; write http://HOST:PORT, or a list of such")
        self._pause_seconds = pause_seconds
        self._max_pause_seconds = max_pause_seconds
        self._max_silence_seconds = max_silence_seconds
        self._silent_since = math.inf
        """When the first request was sent that failed after the last token of any server."""
        self._home: dict[int, Endpoint] = {}

    @property
    def is_given_up(self) -> bool:
        """Whether no server has given a token for too long."""
        return self._silence_left <= 0

    @property
    def _silence_left(self) -> float:
        return self._silent_since + self._max_silence_seconds - time.monotonic()

    def is_free(self, endpoint: Endpoint) -> bool:
        """Whether a request may be sent to it now: it does not rest, or all are given up."""
        return endpoint.free_at <= time.monotonic() or self.is_given_up

    async def take(self, episode: int) -> Endpoint:
        """The server of this episode's next request; while all rest, wait for the first that is free again."""
        while not (free := [endpoint for endpoint in self.all if self.is_free(endpoint)]):
            rest = min(endpoint.free_at for endpoint in self.all) - time.monotonic()
            rest = max(0.0, rest) + random.uniform(0.0, self._pause_seconds)
            await asyncio.sleep(max(0.0, min(rest, self._silence_left)))
        endpoint = self._home.get(episode)
        if endpoint not in free:
            endpoint = min(free, key=lambda candidate: candidate.num_taken)
            self._home[episode] = endpoint
        return endpoint

    def forget(self, episode: int) -> None:
        """The episode has ended, or begins."""
        self._home.pop(episode, None)

    def succeeded(self, endpoint: Endpoint) -> None:
        """It gave a token."""
        endpoint.num_failures = 0
        endpoint.resting_until = 0.0
        self._silent_since = math.inf

    def failed(
        self, endpoint: Endpoint, reason: str, *, begun_at: float, is_busy: bool = False, wait_seconds: float = 0.0
    ) -> None:
        """A request that was sent at `begun_at` came to nothing: let the server rest, once for all that fail together.

        One that says that it `is_busy` is left alone even while tokens come from it, for `wait_seconds` where it asks for
        a time.
        """
        endpoint.last_error = reason
        self._silent_since = math.inf if is_busy else min(self._silent_since, begun_at)
        now = time.monotonic()
        if begun_at < endpoint.failed_at:
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
    """The address without the path of its OpenAI routes, which users tend to write."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_address = is_address and not (parts.query or parts.fragment or re.search(r"\s", url))
    except (ValueError, AttributeError, TypeError):
        is_address = False
    if not is_address:
        raise SettingsError(f"base_url={url!r} is no address; write http://HOST:PORT")
    if parts.username or parts.password:
        raise SettingsError(f"the base_url of {parts.hostname} holds a password; name its variable as api_key_env")
    return url.rstrip("/").removesuffix("/v1")
