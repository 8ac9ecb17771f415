"""Opens the memory that a setting names, and a client of a memory service with the interface of `MemoryStore`.

The token is read from its environment variable at each request and never shown.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

from pydantic import BaseModel

from midthought.config.references import optional
from midthought.errors import MemoryStoreError, NoReplyError, SettingsError
from midthought.http.network import read_key, tls_context
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import load_embedder
from midthought.memory.search import FilterOptions, Filters, Hit, SearchMode, check_search
from midthought.memory.service import schemas
from midthought.memory.store import MemoryStore
from midthought.memory.turns import without_unusable_characters
from midthought.tools.background_loop import BackgroundLoop

Reply = TypeVar("Reply", bound=BaseModel)
Found = TypeVar("Found", Hit, Chunk)

_MAX_SHOWN = 200
"""Characters of a service's own words in an error."""
_BACKOFF_SECONDS = 0.1
MAX_REPLY_BYTES = 64 * 2**20
"""Longer replies are refused, so that no service fills the memory."""
_LONGEST_WAIT_SECONDS = 2.0
_IDLE_SECONDS = 20.0
"""Connections idle for longer are reopened: the service closes them after 30 s."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_REMEDY = "start it with 'midthought memory serve', or set memory.path to the address of one that runs"
_LINE_BREAK = re.compile("[\t\n\r\x85\u2028\u2029]")


def open_memory(
    path: str | Path, table: str = "transcripts", embedding_model: str = "minilm", token_env: str | None = None
) -> MemoryStore | RemoteMemory:
    """Returns the memory at `path`: a folder, a URI that LanceDB accepts, or `http://HOST:PORT` of `midthought memory serve`.

    A service is contacted at once and embeds with its own model. Raises MemoryStoreError if the service cannot be reached,
    refuses the token or serves another table.
    """
    if not str(path).lower().startswith(("http://", "https://")):
        return MemoryStore.open(path, table, load_embedder(embedding_model))
    memory = RemoteMemory(str(path), token_env=token_env)
    try:
        served = memory.stats().table
    except NoReplyError as error:
        raise MemoryStoreError(f"no service answers at this address: {error}") from None
    if served != table:
        shown = f"{served!r:.60}"
        raise MemoryStoreError(f"{path}: the service has table {shown}, not {table!r}; set memory.table={shown}")
    return memory


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
        optional("httpx", "memory")
        _check(url)
        read_key(token_env, url)
        if timeout_seconds <= 0 or retries < 0:
            raise SettingsError(f"timeout_seconds={timeout_seconds} must be more than 0, retries={retries} 0 or more")
        self.url = url.rstrip("/")
        self._token_env = token_env
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._open()

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which opens its own connections."""
        return {**vars(self), "_loop": None, "_client": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def _open(self) -> None:
        import httpx

        self._loop = BackgroundLoop("midthought-memory")
        self._client = httpx.AsyncClient(
            timeout=None,  # noqa: S113  # `_once` limits the whole request
            limits=httpx.Limits(max_keepalive_connections=self.max_concurrency, keepalive_expiry=_IDLE_SECONDS),
            trust_env=False,
            verify=tls_context(),
            headers={"Accept-Encoding": "identity"},
        )

    def search(
        self, query: str, k: int = 3, mode: SearchMode = "hybrid", **filters: Unpack[FilterOptions]
    ) -> list[Hit]:
        """The same as `MemoryStore.search`, on the service."""
        check_search(k, mode)
        asked = {"query": _plain(query), "k": k, "mode": mode, **asdict(Filters.of(**filters))}
        return [_on_one_line(hit) for hit in self._ask("POST", "/search", asked, schemas.Found).hits[:k]]

    def get(self, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        """Returns the chunks with these ids that exist, by id."""
        found: dict[str, Chunk] = {}
        for start in range(0, len(chunk_ids), schemas.MAX_IDS):
            ids = list(chunk_ids[start : start + schemas.MAX_IDS])
            chunks = self._ask("POST", "/chunks", {"ids": ids}, schemas.Chunks).chunks
            found |= {chunk.chunk_id: _on_one_line(chunk) for chunk in chunks if chunk.chunk_id in ids}
        return found

    def stats(self) -> schemas.Stats:
        """Returns the service's statistics: `num_chunks`, `embedding_model`, `max_k`, …"""
        return self._ask("GET", "/stats", None, schemas.Stats)

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
        return self.stats().num_chunks

    def _ask(self, method: str, path: str, asked: Any, kind: type[Reply]) -> Reply:
        """Sends a request with retries; returns the reply, validated. Keys that a newer service adds are ignored."""
        ends_at = time.monotonic() + self._timeout_seconds
        body = None if asked is None else json.dumps(asked).encode()
        for attempt in range(self._retries + 1):
            try:
                reply = self._loop.run(self._once(method, path, body, ends_at))
                try:
                    return kind.model_validate_json(reply)
                except ValueError:
                    words = f"{self.url}: not a memory service; start one with 'midthought memory serve'"
                    raise MemoryStoreError(words) from None
            except NoReplyError as error:
                wait = max(error.wait_seconds, _BACKOFF_SECONDS * 2**attempt * random.uniform(0.5, 1.0))
                wait = min(wait, _LONGEST_WAIT_SECONDS)
                if not error.is_passing or attempt == self._retries or time.monotonic() + wait >= ends_at:
                    raise
                time.sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, method: str, path: str, body: bytes | None, ends_at: float) -> bytes:
        import httpx

        token = read_key(self._token_env, self.url)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            async with asyncio.timeout(ends_at - time.monotonic()):  # httpx's own limits are for one operation each
                reply = bytearray()
                async with self._client.stream(method, self.url + path, content=body, headers=headers) as response:
                    async for part in response.aiter_bytes():
                        reply += part
                        if len(reply) > MAX_REPLY_BYTES:
                            raise self._no_reply(f"the reply has more than {MAX_REPLY_BYTES:,} bytes")
        except TimeoutError:
            raise self._no_reply(f"the memory did not answer within {self._timeout_seconds:g} seconds") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            reason = _one_line(str(error) or type(error).__name__)
            raise self._no_reply(f"the memory cannot be reached ({reason})") from None
        if response.status_code == 200:
            return bytes(reply)
        raise self._refusal(response.status_code, bytes(reply), response.headers.get("retry-after", ""))

    def _no_reply(self, words: str, wait_seconds: float = 0.0) -> NoReplyError:
        return NoReplyError(f"{self.url}: {words}; {_REMEDY}", is_passing=True, wait_seconds=wait_seconds)

    def _refusal(self, status: int, reply: bytes, retry_after: str) -> Exception:
        try:
            detail = _one_line(str(json.loads(reply)["detail"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            detail = f"status {status}"
        if status in _PASSING:
            seconds = float(retry_after) if retry_after.isdecimal() and len(retry_after) < 4 else 0.0
            return self._no_reply(f"the memory has no time ({detail})", seconds)
        if status in (400, 413, 422):
            return ValueError(detail)
        if status == 401:
            named = "check its value" if self._token_env else "name its environment variable (memory.token_env)"
            return MemoryStoreError(f"{self.url} rejects the token; {named}")
        if 300 <= status < 400:
            return MemoryStoreError(f"{self.url} redirects (status {status}); write the address to which it redirects")
        return MemoryStoreError(f"{self.url}: {detail} (status {status}); is it a memory service?")


def _check(url: str) -> None:
    import httpx

    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        parts = httpx.URL("")
    if parts.scheme not in ("http", "https") or not parts.host:
        raise SettingsError(f"{url!r} is no address of a service; write http://HOST:PORT")
    if parts.userinfo or parts.query or parts.fragment:
        raise SettingsError(
            f"the service's address at {parts.host} has more than scheme, host, port and path; put its token "
            "into an environment variable"
        )


def _plain(query: str) -> str:
    """Replaces lone surrogates, as the store does, and NUL, which the service refuses."""
    return query.encode(errors="replace").decode().replace("\0", " ")


def _on_one_line(found: Found) -> Found:
    """Replaces control characters and line breaks by blanks: they could forge a further result for the model. Ids stay."""

    def plain(text: str) -> str:
        return _LINE_BREAK.sub(" ", without_unusable_characters(text))

    changes: dict[str, Any] = {
        name: plain(getattr(found, name)) for name in ("episode", "speaker", "transcript", "time")
    }
    for name in ("turns", "times"):
        changes[name] = tuple((start, plain(text)) for start, text in getattr(found, name))
    return replace(found, **changes)


def _one_line(text: str) -> str:
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 2 * _MAX_SHOWN]).split())
    return line if len(line) <= _MAX_SHOWN else line[:_MAX_SHOWN] + "…"
