"""Client of a memory service (`midthought memory serve`) with the interface of `MemoryStore`. Needs no further package.

Uses `http.client`, because a request's deadline must also bound a body that arrives slowly, which httpx's timeouts per
read do not. The token is read from its environment variable at each request and never shown.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import random
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Unpack
from urllib.parse import urlsplit

from midthought.errors import MemoryStoreError, NoReplyError, SettingsError
from midthought.memory.chunks import Chunk
from midthought.memory.search import FilterOptions, Filters, Hit, SearchMode, check_search
from midthought.network import read_key

_MAX_REPLY_BYTES = 64 * 1024 * 1024
_IDS_PER_REQUEST = 500
_BACKOFF_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 2.0
_IDLE_SECONDS = 20.0
"""Connections idle for longer are reopened: the service closes them after 30 s."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_HIT_FIELDS = frozenset(field.name for field in dataclasses.fields(Hit))
_CHUNK_FIELDS = frozenset(field.name for field in dataclasses.fields(Chunk))


def is_service(path: str) -> bool:
    """Whether a memory's `path` is the address of a service."""
    return path.lower().startswith(("http://", "https://"))


class RemoteMemory:
    """Searches a served memory; safe to use from many threads. Connections are kept and reused, without a proxy.

    `timeout_seconds` is the deadline of a request with all its retries: up to `retries` if the service cannot be
    reached, is busy or fails; then NoReplyError. Raises ValueError if the service rejects the query, MemoryStoreError
    if it rejects the token or is not a memory service.
    """

    max_concurrency = 64
    """Concurrent searches: the service batches them."""

    def __init__(
        self, url: str, *, token_env: str | None = None, timeout_seconds: float = 8.0, retries: int = 3
    ) -> None:
        parts = _checked(url)
        read_key(token_env, url)
        if timeout_seconds <= 0 or retries < 0:
            raise SettingsError(f"timeout_seconds={timeout_seconds} must be more than 0, retries={retries} 0 or more")
        self.url = url.rstrip("/")
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._is_tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._token_env = token_env
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._idle: deque[tuple[http.client.HTTPConnection, float]] = deque()

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which opens its own connections."""
        return {**vars(self), "_idle": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _idle=deque())

    def search(
        self,
        query: str,
        k: int = 3,
        mode: SearchMode = "hybrid",
        *,
        thought: str = "",
        **filters: Unpack[FilterOptions],
    ) -> list[Hit]:
        """The same as `MemoryStore.search`, on the service."""
        check_search(k, mode)
        asked = {"query": _plain(query), "k": k, "mode": mode} | _filters(filters)
        if thought:  # an older service does not know it
            asked["thought"] = _plain(thought)
        return self._ask("POST", "/search", asked, lambda reply: _hits(reply["hits"]))

    def search_batch(
        self,
        queries: Sequence[str],
        k: int = 3,
        mode: SearchMode = "hybrid",
        **filters: Unpack[FilterOptions],
    ) -> list[list[Hit]]:
        """Returns the hits of `search` for each query."""
        check_search(k, mode)
        found: list[list[Hit]] = []
        size = int(self.stats()["max_queries"]) if len(queries) > 1 else 1
        for start in range(0, len(queries), size):
            part = [_plain(query) for query in queries[start : start + size]]
            asked = {"queries": part, "k": k, "mode": mode} | _filters(filters)
            found += self._ask("POST", "/search/batch", asked, lambda reply: [_hits(one) for one in reply["results"]])
        return found

    def get(self, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        """Returns the chunks with these ids that exist, by id."""
        found: dict[str, Chunk] = {}
        for start in range(0, len(chunk_ids), _IDS_PER_REQUEST):
            asked = {"ids": list(chunk_ids[start : start + _IDS_PER_REQUEST])}
            chunks = self._ask("POST", "/chunks", asked, lambda reply: [_chunk(row) for row in reply["chunks"]])
            found |= {chunk.chunk_id: chunk for chunk in chunks}
        return found

    def stats(self) -> dict[str, Any]:
        """Returns the service's statistics: `num_chunks`, `embedding_model`, `max_k`, …"""
        return self._ask("GET", "/stats", None, dict)

    def require(self, chunks: Sequence[Chunk]) -> None:
        """Raises MemoryStoreError unless the service has these chunks with the same words; it may have more."""
        found = self.get([chunk.chunk_id for chunk in chunks])
        missing = [chunk.chunk_id for chunk in chunks if found.get(chunk.chunk_id) != chunk]
        if missing:
            raise MemoryStoreError(
                f"{self.url}: the memory lacks {len(missing)} of {len(chunks)} chunks, such as {missing[0]!r}, or has "
                "other words in them; build it from the same transcripts with the same chunking (memory.chunking), and "
                "serve it again"
            )

    def __len__(self) -> int:
        return int(self.stats()["num_chunks"])

    def _ask(self, method: str, path: str, asked: Any, read: Any) -> Any:
        """Sends a request with retries; returns `read(reply)`."""
        ends_at = time.monotonic() + self._timeout_seconds
        body = None if asked is None else json.dumps(asked).encode()
        for attempt in range(self._retries + 1):
            try:
                reply = self._once(method, path, body, ends_at)
                try:
                    return read(json.loads(reply))
                except (ValueError, LookupError, TypeError, RecursionError):
                    words = f"{self.url}: not a memory service; start one with 'midthought memory serve'"
                    raise MemoryStoreError(words) from None
            except NoReplyError as error:
                wait = max(error.wait_seconds, _BACKOFF_SECONDS * 2**attempt * random.uniform(0.5, 1.0))
                wait = min(wait, _LONGEST_WAIT_SECONDS)
                if attempt == self._retries or time.monotonic() + wait >= ends_at:
                    raise
                time.sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _once(self, method: str, path: str, body: bytes | None, ends_at: float) -> bytes:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        token = read_key(self._token_env, self.url)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection, was_used = self._connection()
        try:
            try:
                status, retry_after, reply = _exchange(connection, method, self._prefix + path, body, headers, ends_at)
            except (ConnectionError, http.client.BadStatusLine):
                if not was_used:
                    raise
                connection.close()  # the service closed it while it was idle
                connection = self._new_connection()
                status, retry_after, reply = _exchange(connection, method, self._prefix + path, body, headers, ends_at)
        except TimeoutError:
            connection.close()
            words = f"the memory did not answer within {self._timeout_seconds:g} seconds; go on without it"
            raise NoReplyError(words, is_passing=True) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NoReplyError(f"the memory cannot be reached ({reason}); go on without it", is_passing=True) from None
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append((connection, time.monotonic()))
        if status == 200:
            return reply
        raise self._refusal(status, reply, retry_after)

    def _refusal(self, status: int, reply: bytes, retry_after: str) -> Exception:
        try:
            detail = str(json.loads(reply)["detail"])
        except (ValueError, LookupError, TypeError, RecursionError):
            detail = f"status {status}"
        if status in _PASSING:
            seconds = float(retry_after) if retry_after.isdecimal() and len(retry_after) < 4 else 0.0
            return NoReplyError(
                f"the memory has no time ({detail}); go on without it", is_passing=True, wait_seconds=seconds
            )
        if status in (400, 413, 422):
            return ValueError(detail)
        if status == 401:
            remedy = (
                "name its environment variable (memory.token_env)" if self._token_env is None else "check its value"
            )
            return MemoryStoreError(f"{self.url} rejects the token; {remedy}")
        return MemoryStoreError(f"{self.url}: {detail} (status {status}); is it a memory service?")

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        while self._idle:
            try:
                connection, since = self._idle.pop()
            except IndexError:  # another thread took it
                break
            if time.monotonic() - since < _IDLE_SECONDS:
                return connection, True
            connection.close()
        return self._new_connection(), False

    def _new_connection(self) -> http.client.HTTPConnection:
        if self._is_tls:
            return http.client.HTTPSConnection(self._host, self._port, context=ssl.create_default_context())
        return http.client.HTTPConnection(self._host, self._port)


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    ends_at: float,
) -> tuple[int, str, bytes]:
    """Returns status, Retry-After and body. Raises TimeoutError after `ends_at`, however slowly the body arrives."""
    connection.timeout = _left(ends_at)
    if connection.sock is not None:
        connection.sock.settimeout(connection.timeout)
    connection.request(method, path, body, headers)
    sock = connection.sock  # the connection drops it after its last response
    sock.settimeout(_left(ends_at))
    response = connection.getresponse()
    parts, size = [], 0
    while True:
        left = _left(ends_at)
        if sock.fileno() >= 0:
            sock.settimeout(left)
        part = response.read1(1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if size > _MAX_REPLY_BYTES:
            raise http.client.HTTPException(f"more than {_MAX_REPLY_BYTES:,} bytes")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    response.close()  # `read1` does not close it; the connection could not be reused
    if response.will_close:
        connection.close()
    return response.status, response.getheader("Retry-After", ""), b"".join(parts)


def _left(ends_at: float) -> float:
    left = ends_at - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _checked(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{url!r} is no address of a service; write http://HOST:PORT")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise SettingsError(
            f"the service's address at {parts.hostname} has more than scheme, host, port and path; put its token "
            "into an environment variable"
        )
    return parts


def _plain(query: str) -> str:
    """Replaces lone surrogates and NUL, as the store does."""
    return query.encode(errors="replace").decode().replace("\0", " ")


def _filters(filters: FilterOptions) -> dict[str, Any]:
    """Returns the filters as the service reads them; times only if given, so that an older service answers."""
    checked = Filters.of(**filters)
    times = {name: time for name, time in (("after", checked.after), ("before", checked.before)) if time}
    return {"episodes": list(checked.episodes), "speakers": list(checked.speakers)} | times


def _hits(rows: Any) -> list[Hit]:
    return [Hit(**{name: value for name, value in row.items() if name in _HIT_FIELDS}) for row in rows]


def _chunk(row: Any) -> Chunk:
    return Chunk(**{name: value for name, value in row.items() if name in _CHUNK_FIELDS})
