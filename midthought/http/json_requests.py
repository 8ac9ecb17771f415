"""Requests to HTTP endpoints with JSON, such as OpenAI's: time limit, retries, concurrency limit, and a cache of replies.

The API key is read from an environment variable at each request; it is never stored, logged or shown. The retry loop is our
own: httpx transports retry only failed connections, and here an unreadable reply and `Retry-After` count as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import random
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from midthought.errors import MissingExtraError, NoReplyError, SettingsError
from midthought.http.network import client_options, read_key

LONGEST_WAIT_SECONDS = 30.0
"""Maximum wait between two attempts, also if the endpoint requests more."""
FILE_WAIT_SECONDS = 5.0
"""Time to wait for a cache of replies that another process has locked."""

_CONTROL = re.compile(r"<|\[(?=/?[A-Z_]+\])")
_PASSING_STATUS = frozenset({408, 429})

Read = TypeVar("Read")


class Reply(NamedTuple):
    """Text of a model's reply, and why it ended (`stop`, `length`, …)."""

    text: str
    finish_reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointSettings:
    """Address, time limit and retries of an endpoint."""

    base_url: str
    """Up to and without the path, e.g. `/chat/completions`."""
    api_key_env: str | None
    timeout_seconds: float
    """Time limit of one attempt, from connecting to the last byte of the reply."""
    retries: int
    """Attempts after the first, with exponential backoff and jitter, or after the time that `Retry-After` gives."""
    backoff_seconds: float
    max_concurrency: int


class JsonEndpoint:
    """Requests JSON from one path. Raises `SettingsError` for invalid settings, `MissingExtraError` without httpx."""

    def __init__(self, settings: EndpointSettings, path: str) -> None:
        if importlib.util.find_spec("httpx") is None:
            raise MissingExtraError("httpx", "judge")
        _check(settings)
        self._settings = settings
        self.url = f"{settings.base_url.rstrip('/')}{path}"
        self.num_retries = 0
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._slots = weakref.WeakKeyDictionary()  # an endpoint can outlive several event loops

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the semaphores, which belong to event loops of this process."""
        return {**self.__dict__, "_slots": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_slots": weakref.WeakKeyDictionary()})

    async def post(self, body: bytes | None, read: Callable[[Any], Read]) -> Read:
        """Posts JSON (None: a GET request) and returns `read(reply)` of the JSON reply. Raises `NoReplyError`.

        Retried: connection errors, timeouts, status 408, 429 and 5xx, and a reply that is not JSON or for which `read` raises
        ValueError, LookupError, TypeError or AttributeError.
        """
        settings = self._settings
        slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(settings.max_concurrency))
        async with slots:
            for attempt in range(settings.retries):
                try:
                    return await self._post(body, read)
                except NoReplyError as error:
                    if not error.is_passing:
                        raise
                    wait = settings.backoff_seconds * 2**attempt * random.uniform(0.5, 1.0)
                    await asyncio.sleep(min(max(wait, error.wait_seconds), LONGEST_WAIT_SECONDS))
                self.num_retries += 1
            return await self._post(body, read)

    async def _post(self, body: bytes | None, read: Callable[[Any], Read]) -> Read:
        import httpx

        key = read_key(self._settings.api_key_env, self._settings.base_url)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            async with (
                asyncio.timeout(self._settings.timeout_seconds),
                httpx.AsyncClient(timeout=None, **client_options(self._settings.base_url)) as client,  # noqa: S113
            ):
                method = "GET" if body is None else "POST"
                response = await client.request(method, self.url, content=body, headers=headers)
        except TimeoutError:
            words = f"no reply within {self._settings.timeout_seconds:g} seconds"
            raise NoReplyError(words, is_passing=True) from None
        except (httpx.HTTPError, OSError) as error:
            raise NoReplyError(hidden(f"{type(error).__name__}: {error}", key), is_passing=True) from None
        status = response.status_code
        if status != 200:
            raise NoReplyError(
                hidden(f"status {status}: {response.text}", key),
                is_passing=status in _PASSING_STATUS or status >= 500,
                wait_seconds=_seconds(response.headers.get("retry-after", "")),
            )
        try:
            return read(response.json())
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = str(error) if type(error) is ValueError else type(error).__name__
            raise NoReplyError(hidden(f"the reply is not what was asked for: {reason}", key), is_passing=True) from None


class ChatEndpoint(JsonEndpoint):
    """OpenAI's chat completions."""

    def __init__(self, settings: EndpointSettings) -> None:
        super().__init__(settings, "/chat/completions")

    async def ask(self, body: bytes) -> Reply:
        """Returns the reply to one request (JSON), with the retries of `post`. Raises `NoReplyError`."""
        return await self.post(body, reply_of)


def as_data(material: Mapping[str, Any]) -> str:
    """Returns a JSON object without control tokens: `<` and the `[` of `[INST]` are written as JSON escapes."""
    text = json.dumps(material, ensure_ascii=False).encode(errors="replace").decode()
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def reply_of(document: Any) -> Reply:
    """Returns the reply in a chat completion (parsed JSON). Raises ValueError if it is none."""
    try:
        choice = document["choices"][0]
        text = str(choice["message"]["content"] or "").encode(errors="replace").decode()  # no lone surrogates
        return Reply(text, str(choice.get("finish_reason")))
    except (LookupError, TypeError, AttributeError):
        raise ValueError("no chat completion") from None


def hidden(text: str, key: str) -> str:
    """Returns the first 200 characters of an untrusted text on one line, without the key."""
    return " ".join((text.replace(key, "…") if key else text).split())[:200]


def _seconds(text: str) -> float:
    return float(text) if re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,3})?", text) else 0.0


def _check(settings: EndpointSettings) -> None:
    import httpx

    try:
        url = httpx.URL(settings.base_url)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise SettingsError(f"base_url={settings.base_url!r} is no address; write http://HOST:PORT/v1")
    if url.userinfo:
        raise SettingsError(
            f"the base_url of {url.host} holds a password; put a key into a variable named by api_key_env"
        )
    if url.query or url.fragment:
        raise SettingsError(
            f"the base_url of {url.host} has more than scheme, host, port and path; write http://HOST:PORT/v1"
        )
    read_key(settings.api_key_env, settings.base_url)
    if min(settings.timeout_seconds, settings.max_concurrency) <= 0:
        raise SettingsError(
            f"timeout_seconds={settings.timeout_seconds} and max_concurrency={settings.max_concurrency} must be positive"
        )
    if min(settings.retries, settings.backoff_seconds) < 0:
        raise SettingsError(
            f"retries={settings.retries} and backoff_seconds={settings.backoff_seconds} must not be negative"
        )


class ReplyCache:
    """Model replies by the hash of the request, in one SQLite file; without a path in memory. Raises `SettingsError` if the file
    cannot be opened, or is a database without our table.

    Stored replies survive a killed process, and processes can share the file. `diskcache` would store pickles, which a shared
    file must not contain, so this small table is our own.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._lock = threading.Lock()
        self.num_errors = 0
        """Replies that could not be read or stored (full disk, locked file); they are requested again."""
        try:
            if path is not None:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path or ":memory:", timeout=FILE_WAIT_SECONDS, check_same_thread=False)
            weakref.finalize(self, self._file.close)
            with self._file:
                if self._file.execute("SELECT 1 FROM sqlite_master").fetchone():  # only our own is changed
                    self._file.execute("SELECT key, text, finish_reason FROM replies LIMIT 1")
                self._file.execute("PRAGMA journal_mode = WAL")
                self._file.execute("PRAGMA synchronous = NORMAL")
                self._file.execute(
                    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, text TEXT NOT NULL, finish_reason TEXT NOT NULL)"
                )
        except (sqlite3.Error, OSError) as error:
            raise SettingsError(
                f"the cache of replies {path} cannot be used: {error}; give another path, or remove that file"
            ) from None

    def get(self, key: str) -> Reply | None:
        with self._counted(), self._lock:
            row = self._file.execute("SELECT text, finish_reason FROM replies WHERE key = ?", (key,)).fetchone()
            return Reply(*row) if row else None
        return None

    def put(self, key: str, reply: Reply) -> None:
        with self._counted(), self._lock, self._file:
            self._file.execute("INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", (key, *reply))

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error:
            self.num_errors += 1
