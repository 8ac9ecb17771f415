"""The way to model servers: one HTTP client per event loop, keys, deadlines, and how patient to be.

Knows addresses and HTTP; nothing of tokens, episodes or what the servers' words mean.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import ipaddress
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from midthought.engines.servers.endpoints import Endpoint
from midthought.engines.servers.streams import Interrupted, refusal, words
from midthought.errors import EngineError, MissingExtraError, SettingsError

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How long to wait for a server, and how often to try again. Everything that waits has a deadline."""

    connect_timeout_seconds: float = 10.0
    first_token_timeout_seconds: float = 300.0
    """From sending a request to its first token: the server's queue and the prompt."""
    next_token_timeout_seconds: float = 60.0
    """From one token to the next; also for answers that hold no tokens."""
    total_timeout_seconds: float = 3600.0
    """Of one `sample`, with its turn here, all its requests and the pauses between them."""
    load_timeout_seconds: float = 900.0
    """For a server to load new weights, with the end of what others have running there."""
    max_attempts: int = 10
    """Requests in a row that fail without a single new token before `sample` gives up. Status 429 is no failure."""
    pause_seconds: float = 0.5
    """A server's rest after its first failure; see `Endpoints`."""
    max_pause_seconds: float = 30.0

    def __post_init__(self) -> None:
        for limit in dataclasses.fields(self):
            value = getattr(self, limit.name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise SettingsError(f"{limit.name}={value!r}: give a finite number above 0")


@dataclass(frozen=True, slots=True)
class Session:
    """What belongs to one event loop."""

    client: httpx.AsyncClient
    places: dict[Endpoint, asyncio.Semaphore]
    """Turns with each server."""
    asking: dict[Endpoint, asyncio.Lock]
    """Held while a server is asked what must be known of it, or loads weights."""


class Connections:
    """The clients of one engine, which may outlive several event loops.

    Args:
        max_num_seqs: most requests on their way to each server.
        api_key_env: the environment variable that holds the servers' key.
    """

    def __init__(
        self, endpoints: Sequence[Endpoint], patience: RetryPolicy, *, max_num_seqs: int, api_key_env: str | None
    ) -> None:
        self._endpoints = endpoints
        self._patience = patience
        self._max_num_seqs = max_num_seqs
        self._key = _key(api_key_env)
        self._sessions: dict[asyncio.AbstractEventLoop, Session] = {}

    def session(self) -> Session:
        """That of the running event loop."""
        import httpx

        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            self._sessions = {each: session for each, session in self._sessions.items() if not each.is_closed()}
            client = httpx.AsyncClient(
                headers={"Accept-Encoding": "identity"}
                | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
                timeout=httpx.Timeout(None, connect=self._patience.connect_timeout_seconds),
                # Nobody would close idle connections when the loop ends.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
                # A proxy cannot reach this machine's own ports.
                trust_env=not all(is_loopback(urlsplit(endpoint.url).hostname or "") for endpoint in self._endpoints),
            )
            self._sessions[loop] = Session(
                client,
                places={endpoint: asyncio.Semaphore(self._max_num_seqs) for endpoint in self._endpoints},
                asking={endpoint: asyncio.Lock() for endpoint in self._endpoints},
            )
        return self._sessions[loop]

    async def ask(
        self, endpoint: Endpoint, method: str, path: str, body: Any, *, seconds: float | None = None
    ) -> httpx.Response:
        """A question that is answered in one piece; Interrupted where no answer comes."""
        import httpx

        seconds = self._patience.next_token_timeout_seconds if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                return await self.session().client.request(method, endpoint.url + path, json=body)
        except TimeoutError:
            raise Interrupted(f"no answer for {seconds:g} s") from None
        except httpx.HTTPError as error:
            raise Interrupted(named(error), is_gone=True) from None

    async def post(self, endpoint: Endpoint, path: str, body: Any) -> dict[str, Any] | None:
        """Have the server do something that takes its time; its answer, or None where it has no such route.

        Raises Interrupted where no answer comes, EngineError with the server's words where it does not do it.
        """
        answer = await self.ask(endpoint, "POST", path, body, seconds=self._patience.load_timeout_seconds)
        if answer.status_code == 404 and _is_unknown_route(answer):
            return None
        if answer.status_code != 200:
            raise EngineError(str(refusal(answer)))
        try:
            said = answer.json()
        except ValueError:
            said = None
        return said if isinstance(said, dict) else {}


def require_httpx(extra: str) -> None:
    """Raise MissingExtraError where httpx is not installed."""
    if importlib.util.find_spec("httpx") is None:
        raise MissingExtraError("httpx", extra)


def named(error: Exception) -> str:
    """An error of the HTTP client in words."""
    return words(f"{type(error).__name__}: {error}")


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine, seen from itself alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_unknown_route(answer: httpx.Response) -> bool:
    """Told apart from a 404 that means a missing file or model: web frameworks answer `{"detail": "Not Found"}`."""
    try:
        return bool(answer.json() == {"detail": "Not Found"})
    except ValueError:
        return True


def _key(api_key_env: str | None) -> str:
    if api_key_env is None:
        return ""
    key = os.environ.get(api_key_env, "")
    if not re.fullmatch(r"[!-~]+", key):
        raise SettingsError(
            f"the environment variable {api_key_env} (api_key_env) is not set, or holds what no key holds "
            "(blanks, line ends); put the key there"
        )
    return key
