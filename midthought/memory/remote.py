"""Client of a memory service (`midthought memory serve`) with the interface of `MemoryStore`. Needs no further package.

Uses `http.client`, because a request's deadline must also bound a body that arrives slowly, which httpx's timeouts per
read do not. The token is read from its environment variable at each request and never shown.
"""

from __future__ import annotations

import functools
import http.client
import io
import json
import math
import random
import re
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Unpack
from urllib.parse import urlsplit

from midthought.errors import MemoryStoreError, NoReplyError, SettingsError
from midthought.memory.chunks import Chunk
from midthought.memory.search import FilterOptions, Filters, Hit, SearchMode, check_search
from midthought.memory.turns import without_unusable_characters
from midthought.network import read_key

_MAX_RESULT_BYTES = 64 * 1024
_MAX_TEXT_CHARS = 1_000_000
_MAX_SHOWN = 200
"""Characters of a service's own words in an error."""
_IDS_PER_REQUEST = 500
_BACKOFF_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 2.0
_IDLE_SECONDS = 20.0
"""Connections idle for longer are reopened: the service closes them after 30 s."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_HIT_TEXTS = ("chunk_id", "episode", "speaker", "transcript", "time")
_CHUNK_TEXTS = (*_HIT_TEXTS, "stem", "embedded")
_IDENTIFIERS = frozenset({"chunk_id", "stem"})

_LINE_BREAK = re.compile("[\t\n\r\x85\u2028\u2029]")
_REMEDY = "start it with 'midthought memory serve', or set memory.path to the address of one that runs"
_IF_FEW = "if they are few, this is not a memory service: start one with 'midthought memory serve'"


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
        return self._ask("POST", "/search", asked, lambda reply: _hits(reply["hits"], k))

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
        size = self._number("max_queries") if len(queries) > 1 else 1
        for start in range(0, len(queries), size):
            part = [_plain(query) for query in queries[start : start + size]]
            asked = {"queries": part, "k": k, "mode": mode} | _filters(filters)
            found += self._ask("POST", "/search/batch", asked, functools.partial(_batches, len(part), k))
        return found

    def get(self, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        """Returns the chunks with these ids that exist, by id."""
        found: dict[str, Chunk] = {}
        for start in range(0, len(chunk_ids), _IDS_PER_REQUEST):
            ids = list(chunk_ids[start : start + _IDS_PER_REQUEST])
            chunks = self._ask("POST", "/chunks", {"ids": ids}, functools.partial(_chunks, len(ids)))
            found |= {chunk.chunk_id: chunk for chunk in chunks if chunk.chunk_id in ids}
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
        return self._number("num_chunks")

    def _number(self, name: str) -> int:
        return self._ask("GET", "/stats", None, lambda reply: _natural(reply[name], least=int(name == "max_queries")))

    def _ask(self, method: str, path: str, asked: Any, read: Any) -> Any:
        """Sends a request with retries; returns `read(reply)`."""
        ends_at = time.monotonic() + self._timeout_seconds
        body = None if asked is None else json.dumps(asked).encode()
        most = _max_reply_bytes(asked or {})
        for attempt in range(self._retries + 1):
            try:
                reply = self._once(method, path, body, ends_at, most)
                try:
                    return read(json.loads(reply, parse_constant=_no_number))
                except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
                    words = f"{self.url}: not a memory service; start one with 'midthought memory serve'"
                    raise MemoryStoreError(words) from None
            except NoReplyError as error:
                wait = max(error.wait_seconds, _BACKOFF_SECONDS * 2**attempt * random.uniform(0.5, 1.0))
                wait = min(wait, _LONGEST_WAIT_SECONDS)
                if not error.is_passing or attempt == self._retries or time.monotonic() + wait >= ends_at:
                    raise
                time.sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _once(self, method: str, path: str, body: bytes | None, ends_at: float, most: int) -> bytes:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        token = read_key(self._token_env, self.url)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = (method, self._prefix + path, body, headers)
        connection, was_used = self._connection()
        try:
            try:
                status, retry_after, reply = _exchange(connection, request, ends_at, most)
            except (ConnectionError, http.client.BadStatusLine):
                if not was_used:
                    raise
                connection.close()  # the service closed it while it was idle
                connection = self._new_connection()
                status, retry_after, reply = _exchange(connection, request, ends_at, most)
        except _TooLargeError:
            connection.close()
            words = f"{self.url}: the memory sends more than {most:,} bytes; ask for fewer results, or, {_IF_FEW}"
            raise NoReplyError(words, is_passing=False) from None
        except TimeoutError:
            connection.close()
            words = f"the memory did not answer within {self._timeout_seconds:g} seconds"
            raise self._no_reply(words) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise self._no_reply(f"the memory cannot be reached ({_one_line(reason)})") from None
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append((connection, time.monotonic()))
        if status == 200:
            return reply
        raise self._refusal(status, reply, retry_after)

    def _no_reply(self, words: str, wait_seconds: float = 0.0) -> NoReplyError:
        words = f"{self.url}: {words}; {_REMEDY}"
        return NoReplyError(words, is_passing=True, wait_seconds=wait_seconds)

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
            remedy = (
                "name its environment variable (memory.token_env)" if self._token_env is None else "check its value"
            )
            return MemoryStoreError(f"{self.url} rejects the token; {remedy}")
        if 300 <= status < 400:
            return MemoryStoreError(f"{self.url} redirects (status {status}); write the address to which it redirects")
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
    connection: http.client.HTTPConnection, request: tuple[Any, ...], ends_at: float, most: int
) -> tuple[int, str, bytes]:
    """Returns status, Retry-After and body. Raises TimeoutError after `ends_at`, however slowly the body arrives, and
    _TooLargeError for a body of more than `most` bytes."""
    connection.timeout = _left(ends_at)
    if connection.sock is not None:
        connection.sock.settimeout(connection.timeout)
    connection.response_class = functools.partial(_Response, ends_at)  # type: ignore[assignment]
    connection.request(*request)
    response = connection.getresponse()
    parts, size = [], 0
    while True:
        part = response.read1(1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if size > most:
            raise _TooLargeError
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    response.close()  # `read1` does not close it; the connection could not be reused
    if response.will_close:
        connection.close()
    return response.status, response.getheader("Retry-After", ""), b"".join(parts)


class _TooLargeError(Exception):
    """A reply has more bytes than the request allows."""


class _Response(http.client.HTTPResponse):
    """A response of which every byte, also of its head, has to arrive before `ends_at`."""

    def __init__(self, ends_at: float, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_TimedReader(self.fp.detach(), sock, ends_at))


class _TimedReader(io.RawIOBase):
    def __init__(self, reader: io.RawIOBase, sock: socket.socket, ends_at: float) -> None:
        self._reader = reader
        self._sock = sock
        self._ends_at = ends_at

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._ends_at))
        return self._reader.readinto(buffer)

    def close(self) -> None:
        self._reader.close()
        super().close()


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
    return _utf8(query).replace("\0", " ")


def _utf8(text: str) -> str:
    """Replaces lone surrogates."""
    return text.encode(errors="replace").decode()


def _filters(filters: FilterOptions) -> dict[str, Any]:
    """Returns the filters as the service reads them; times only if given, so that an older service answers."""
    checked = Filters.of(**filters)
    times = {name: time for name, time in (("after", checked.after), ("before", checked.before)) if time}
    return {"episodes": list(checked.episodes), "speakers": list(checked.speakers)} | times


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _plain_line(text: str) -> str:
    """Replaces what chunks of a memory never have: control characters, lone surrogates and line breaks."""
    return _LINE_BREAK.sub(" ", without_unusable_characters(text))


def _one_line(text: str) -> str:
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 2 * _MAX_SHOWN]).split())
    return line if len(line) <= _MAX_SHOWN else line[:_MAX_SHOWN] + "…"


def _max_reply_bytes(asked: dict[str, Any]) -> int:
    """Returns the limit of the reply to a request: as many bytes as its results may have."""
    num_results = len(asked["ids"]) if "ids" in asked else len(asked.get("queries", "1")) * asked.get("k", 1)
    return min(max(16 * 1024 * 1024, num_results * _MAX_RESULT_BYTES), 256 * 1024 * 1024)


def _natural(value: Any, least: int = 0) -> int:
    """Returns a count of a service. Raises ValueError for anything else."""
    if type(value) is not int or not least <= value <= sys.maxsize:
        raise ValueError("no count")
    return value


def _texts(row: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns these texts and the turns of a row, each text on one line; identifiers as they are stored, which is UTF-8.
    Raises ValueError for values of other types."""
    texts = {name: row[name] for name in names}
    if not all(isinstance(text, str) and len(text) <= _MAX_TEXT_CHARS for text in texts.values()):
        raise ValueError("no text")
    texts = {name: _utf8(text) if name in _IDENTIFIERS else _plain_line(text) for name, text in texts.items()}
    turns = row.get("turns") or ()
    starts = [_natural(start) for start, speaker in turns]
    if starts != sorted(starts) or starts[-1:] > [len(texts["transcript"].split())]:
        raise ValueError("no turns")
    return texts | {"turns": [(start, _plain_line(str(speaker))) for start, speaker in turns]}


def _rows(rows: Any, most: int) -> list[Any]:
    if not isinstance(rows, list) or len(rows) > most:
        raise ValueError("no list, or too long")
    return rows


def _hits(rows: Any, k: int) -> list[Hit]:
    return [Hit(**_texts(row, _HIT_TEXTS), score=_score(row["score"])) for row in _rows(rows, k)]


def _score(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("no score")
    return float(value)


def _batches(num_queries: int, k: int, reply: Any) -> list[list[Hit]]:
    results = _rows(reply["results"], num_queries)
    if len(results) < num_queries:
        raise ValueError("too few results")
    return [_hits(one, k) for one in results]


def _chunks(most: int, reply: Any) -> list[Chunk]:
    rows = _rows(reply["chunks"], most)
    return [Chunk(**_texts({"embedded": "", **row}, _CHUNK_TEXTS), number=_natural(row["number"])) for row in rows]
