"""How a model server is reached: its address, the HTTP client with the API key, deadlines, and the retry policy."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from midthought.engines.servers.streams import words
from midthought.errors import SettingsError
from midthought.http.network import client_options, socket_path

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Deadlines and retries of requests to a server. Every wait has a deadline."""

    connect_timeout_seconds: float = 10.0
    first_token_timeout_seconds: float = 300.0
    """From sending a request to its first token, including the server's queue and prefill."""
    next_token_timeout_seconds: float = 60.0
    """From one token to the next; also for responses without tokens."""
    total_timeout_seconds: float = 3600.0
    """Of one `sample` call, including its wait here, all its requests and the pauses between them."""
    load_timeout_seconds: float = 900.0
    """For a server to load new weights, including the wait for running requests of other clients."""
    max_attempts: int = 10
    """`sample` fails after this many consecutive requests without a new token. Status 429 and broken connections do not count."""
    max_outage_seconds: float = 300.0
    """How long to wait for unreachable servers while none returns a token; then samples and weight updates fail."""
    pause_seconds: float = 0.5
    """Pause of a server after its first failure; see `engine.ServerPool`."""
    max_pause_seconds: float = 30.0

    def __post_init__(self) -> None:
        for limit in dataclasses.fields(self):
            value = getattr(self, limit.name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise SettingsError(f"{limit.name}={value!r}: give a finite number above 0")


def http_client(url: str, key: str, retry_policy: RetryPolicy) -> httpx.AsyncClient:
    """Returns a client for `http://HOST:PORT`, or `unix:/PATH` of a socket. `key`: the API key; empty for none."""
    import httpx

    # No idle connections: nothing would close them when the engine is no longer used.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    path, options = socket_path(url), client_options(url)
    return httpx.AsyncClient(
        base_url=url if path is None else "http://localhost",
        transport=None
        if path is None
        else httpx.AsyncHTTPTransport(uds=str(path), limits=limits, verify=options["verify"]),
        headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
        timeout=httpx.Timeout(None, connect=retry_policy.connect_timeout_seconds),
        limits=limits,
        **options,
    )


def named(error: Exception) -> str:
    """Returns type and message of an error on one line."""
    return words(f"{type(error).__name__}: {error}")


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
