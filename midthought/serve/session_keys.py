"""Keys of sessions: which session a request belongs to. Keys are found by their digest and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal

from midthought.memory.service.auth import OPEN_PATHS, AccessPolicy
from midthought.serve.errors import RequestError
from midthought.serve.sessions import Session, closed

MAX_CLOSED = 10_000
"""Closed sessions whose keys get status 403; the keys of older ones are unknown (401)."""

KeyKind = Literal["model", "control"]


class Sessions:
    """Open sessions by the digest of their keys. `shared`: the only one, which needs no key of its own."""

    def __init__(self, shared: Session | None = None) -> None:
        self.num_late_rewards = 0
        self._shared = shared
        self._keys: dict[bytes, tuple[Session, KeyKind]] = {}
        self._closed: dict[bytes, None] = {}

    def add(self, session: Session) -> None:
        """From now on the session's keys are known."""
        self._keys[_digest(session.client.api_key)] = session, "model"
        self._keys[_digest(session.client.control_key)] = session, "control"

    def knows(self, key: str) -> bool:
        """Whether it is the key of a session, open or closed."""
        return self._shared is not None or _digest(key) in self._keys or _digest(key) in self._closed

    def find(self, key: str, kind: KeyKind) -> Session:
        """Returns the session of a key. Raises `RequestError`: 401 if it is unknown, 403 if it is closed or the other key."""
        if self._shared is not None and kind == "model":
            return self._shared
        if (digest := _digest(key)) in self._closed:
            raise closed()
        session, found = self._keys.get(digest, (None, kind))
        if session is None:
            raise RequestError("the key is not that of a session", status=401)
        expected = session.client.api_key if found == "model" else session.client.control_key
        if found != kind or not hmac.compare_digest(key.encode(), expected.encode()):
            raise RequestError(f"this needs the session's {kind} key, not its {found} key", status=403)
        return session

    async def close(self, session: Session) -> None:
        """Ends a session; later requests with its keys get status 403."""
        for key in (session.client.api_key, session.client.control_key):
            if self._keys.pop(_digest(key), None) is not None:
                self._closed[_digest(key)] = None
        while len(self._closed) > 2 * MAX_CLOSED:
            del self._closed[next(iter(self._closed))]
        await session.end()


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionAccess(AccessPolicy):
    """Access with the key of a session only."""

    sessions: Sessions

    def is_authorized(self, path: str, authorization: str) -> bool:
        """Whether the request has the key of a session, open or closed."""
        return path in OPEN_PATHS or self.sessions.knows(key_of(authorization))


def key_of(authorization: str) -> str:
    """Returns the key in the value of an `Authorization` header; empty if there is none."""
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
