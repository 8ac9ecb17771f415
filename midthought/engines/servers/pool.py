"""Load balancing over several servers of one model, with pauses after failures. Sends nothing itself."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import re
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from midthought.engines.servers.connection import RetryPolicy
from midthought.engines.servers.server import Server
from midthought.engines.servers.streams import RetryableError
from midthought.errors import SettingsError
from midthought.http.network import socket_path

logger = logging.getLogger(__name__)


class ServerPool:
    """The servers of one engine. A new episode goes to the server with the fewest requests. It stays on that server, whose
    prefix cache contains it, while the server works.

    After a failure a server pauses for `pause_seconds`; each further consecutive failure doubles the pause, up to
    `max_pause_seconds`, with jitter. If no server returns a token for `max_outage_seconds` after a failure, requests fail
    without waiting (`is_given_up`), until a server returns a token.
    """

    def __init__(
        self, servers: Sequence[Server], retry_policy: RetryPolicy, *, max_outage_seconds: float = math.inf
    ) -> None:
        self.all = tuple(servers)
        for server in servers:
            server.on_token = functools.partial(self._succeeded, server)
        self._retry_policy = retry_policy
        self._max_outage_seconds = max_outage_seconds
        self._outage_since = math.inf
        """Start time of the first failed request since the last token of any server."""
        self._home: dict[int, Server] = {}

    @property
    def is_given_up(self) -> bool:
        """Whether no server has returned a token for too long."""
        return self._outage_seconds_left <= 0

    @property
    def _outage_seconds_left(self) -> float:
        return self._outage_since + self._max_outage_seconds - time.monotonic()

    def is_free(self, server: Server) -> bool:
        """Whether a request may be sent now: the server does not pause, or all servers are given up."""
        return server.free_at <= time.monotonic() or self.is_given_up

    async def take(self, episode: int) -> Server:
        """Returns the server for this episode's next request. Waits while all servers pause."""
        while not (free := [server for server in self.all if self.is_free(server)]):
            rest = min(server.free_at for server in self.all) - time.monotonic()
            rest = max(0.0, rest) + random.uniform(0.0, self._retry_policy.pause_seconds)
            await asyncio.sleep(max(0.0, min(rest, self._outage_seconds_left)))
        server = self._home.get(episode)
        if server not in free:
            server = self._home[episode] = min(free, key=lambda each: each.num_taken)
        return server

    def forget(self, episode: int) -> None:
        """Releases the episode's server: the episode has ended, or a new one starts."""
        self._home.pop(episode, None)

    def _succeeded(self, server: Server) -> None:
        server.num_failures = 0
        self._outage_since = math.inf

    def failed(self, server: Server, fault: RetryableError, *, started_at: float) -> None:
        """Records the failure of a request sent at `started_at`, and pauses the server; simultaneous failures count once."""
        server.last_error = str(fault)
        self._outage_since = math.inf if fault.is_busy else min(self._outage_since, started_at)
        if started_at < server.failed_at:
            return
        logger.warning("%s: %s", server.url, fault)
        server.failed_at = time.monotonic()
        server.num_failures += 1
        longest = self._retry_policy.max_pause_seconds
        pause = self._retry_policy.pause_seconds * 2 ** min(server.num_failures - 1, 30)
        pause = min(pause, longest) * random.uniform(0.5, 1.0)
        server.free_at = server.failed_at + (min(fault.wait_seconds, longest) or pause)


def clean_addresses(urls: Sequence[str]) -> list[str]:
    """Returns the different addresses, without `/v1`, which users often add. Raises `SettingsError` if there is none."""
    if not urls:
        raise SettingsError("base_url is empty; write http://HOST:PORT or unix:/PATH, or a list of them")
    return list(dict.fromkeys(map(_clean, urls)))


def _clean(url: str) -> str:
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
