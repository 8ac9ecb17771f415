"""Keys of sessions: which session a request belongs to. A key holds the id of its session and a code that only this process can
make, which is compared in constant time; nothing is kept of a closed session."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Sequence
from typing import Any, Literal

from midthought.serve.errors import RequestError
from midthought.serve.sessions import Session, closed

KeyKind = Literal["model", "control"]


class Sessions:
    """Open sessions by their ids. `shared`: the only one, which needs no key of its own."""

    def __init__(self, shared: Session | None = None) -> None:
        self._shared = shared
        self._open: dict[str, Session] = {}
        self._secret = secrets.token_bytes(32)

    def key(self, kind: KeyKind, session_id: str) -> str:
        """Returns the key of a session with this id, which has no hyphen."""
        code = hmac.digest(self._secret, f"{kind} {session_id}".encode(), "sha256").hex()
        return f"mt-{kind}-{session_id}-{code}"

    def knows(self, key: str) -> bool:
        """Whether it is the key of a session, open or closed."""
        parts: Any = key.split("-")
        return len(parts) == 4 and hmac.compare_digest(key.encode(), self.key(parts[1], parts[2]).encode())

    def add(self, session: Session) -> None:
        """From now on the session is found by its keys."""
        self._open[session.id] = session

    def find(self, keys: Sequence[str], kind: KeyKind) -> Session:
        """Returns the session of the first key that is known. Raises `RequestError`: 401 if none is, 403 if the session is closed
        or it is the session's other key."""
        if self._shared is not None and kind == "model":
            return self._shared
        if (key := next(filter(self.knows, keys), None)) is None:
            raise RequestError("the key is not that of a session", status=401)
        _, found, session_id, _ = key.split("-")
        if session_id not in self._open:
            raise closed()
        if found != kind:
            raise RequestError(f"this needs the session's {kind} key, not its {found} key", status=403)
        return self._open[session_id]

    async def close(self, session: Session) -> None:
        """Ends a session; later requests with its keys get status 403."""
        self._open.pop(session.id, None)
        await session.end()

    async def close_all(self) -> None:
        """Ends all sessions."""
        await asyncio.gather(*map(self.close, list(self._open.values())))
