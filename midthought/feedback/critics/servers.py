"""Several servers of one model: the first that gives something usable answers. Knows requests and replies, no feedback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from midthought.errors import NoReplyError, SettingsError
from midthought.http_json import LONGEST_WAIT_SECONDS, ChatEndpoint, EndpointSettings, Reply

NUM_ROUNDS = 3
"""How often every server is asked where all fail in a way that may pass."""
PAUSE_SECONDS = 30.0
"""How long a server that failed is asked last."""
BACKOFF_SECONDS = 0.5


class Servers:
    """Requests are spread in turn; one that fails goes to the next server at once.

    A server that was silent for `timeout_seconds`, could not be reached or answered with an error is asked last for a while.
    A request takes at most `total_seconds`. Raises SettingsError for an address that is none, MissingExtraError without httpx.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_seconds: float,
        api_key_env: str | None = None,
        max_concurrency: int = 64,
    ) -> None:
        if not urls:
            raise SettingsError("there is no server to ask; give servers: [http://HOST:PORT/v1]")
        self._endpoints = [
            ChatEndpoint(
                EndpointSettings(
                    base_url=url,
                    api_key_env=api_key_env,
                    timeout_seconds=timeout_seconds,
                    retries=0,
                    backoff_seconds=0.0,
                    max_concurrency=max_concurrency,
                )
            )
            for url in urls
        ]
        self.total_seconds = timeout_seconds * len(urls)
        """The longest that `ask` takes."""
        self.num_failures = dict.fromkeys((each.url for each in self._endpoints), 0)
        """Attempts that failed, by address."""
        self._failed_at: dict[str, float] = {}
        self._num_asked = 0

    async def ask(self, body: bytes) -> Reply:
        """The first usable reply to a request (JSON). Raises NoReplyError that names what went wrong at each server."""
        deadline = time.monotonic() + self.total_seconds
        problems: dict[str, str] = {}
        for number in range(NUM_ROUNDS):
            wait_seconds, may_pass = BACKOFF_SECONDS * 2**number, False
            for endpoint in self._in_turn():
                seconds_left = deadline - time.monotonic()
                if seconds_left <= 0:
                    break
                try:
                    async with asyncio.timeout(seconds_left):
                        reply = await endpoint.ask(body)
                except NoReplyError as error:
                    problems[endpoint.url] = str(error)
                    may_pass |= error.is_passing
                    wait_seconds = max(wait_seconds, error.wait_seconds)
                except TimeoutError:
                    problems.setdefault(endpoint.url, f"no reply within {self.total_seconds:g} seconds")
                else:
                    self._failed_at.pop(endpoint.url, None)
                    return reply
                self._failed_at[endpoint.url] = time.monotonic()
                self.num_failures[endpoint.url] += 1
            wait_seconds = min(wait_seconds, LONGEST_WAIT_SECONDS)
            if not may_pass or time.monotonic() + wait_seconds >= deadline or number == NUM_ROUNDS - 1:
                break
            await asyncio.sleep(wait_seconds)
        told = "; ".join(f"{url}: {problem}" for url, problem in problems.items())
        raise NoReplyError(f"no server gave feedback ({told})", is_passing=True)

    def _in_turn(self) -> list[ChatEndpoint]:
        """All servers, the next one first, those that failed lately last."""
        start = self._num_asked % len(self._endpoints)
        self._num_asked += 1
        now = time.monotonic()
        turned = self._endpoints[start:] + self._endpoints[:start]
        return sorted(turned, key=lambda each: now - self._failed_at.get(each.url, -PAUSE_SECONDS) < PAUSE_SECONDS)
