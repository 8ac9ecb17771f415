"""Access control of a service: allowed Host headers, loopback or token; ASGI middleware that refuses other requests, limits the
size and time of all, and sets security headers. Does not depend on routes or the server.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from midthought.errors import SettingsError
from midthought.http.network import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

MIN_TOKEN_CHARS = 16
OPEN_PATHS = frozenset({"/healthz"})
"""The health check needs no token. It does not reveal the memory's contents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessPolicy:
    """Requirements on a request.

    On a loopback address the Host header must name this machine; this stops DNS rebinding, in which a foreign page's name
    points here. On other addresses the token protects the service instead.
    """

    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    knows: Callable[[str], bool] | None = None
    """Whether a token is one of several, which replace `token`."""

    @classmethod
    def of(cls, host: str, token_env: str | None, *, option: str = "--token-env") -> AccessPolicy:
        """Raises SettingsError if the token is missing or too short, or if the address is not loopback and no token is set.
        `option`: the option of the command that names the environment variable."""
        if token_env is None:
            if not is_loopback(host):
                raise SettingsError(
                    f"--host {host} can be reached from other machines, so the service needs a token: put one into an "
                    f"environment variable and name it with {option}; or use --host 127.0.0.1"
                )
            return cls(host=host)
        token = os.environ.get(token_env, "")
        if not is_valid_token(token):
            raise SettingsError(
                f"the environment variable {token_env} holds no token of {MIN_TOKEN_CHARS} or more visible ASCII "
                "characters; create one, for example with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        return cls(host=host, token=token)

    def accepts_host(self, header: str) -> bool:
        """Whether the `Host` header names this service."""
        if not is_loopback(self.host):
            return True
        name = _host_name(header)
        return name is not None and (name == self.host.lower() or is_loopback(name))

    def is_authorized(self, path: str, tokens: Sequence[str]) -> bool:
        """Whether the request may proceed: one of its tokens is valid. Compares in constant time."""
        if path in OPEN_PATHS or (self.knows is None and self.token is None):
            return True
        is_valid = self.knows or self._is_token
        return True in [is_valid(given) for given in tokens]

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="surrogateescape"), (self.token or "").encode())


def tokens_of(headers: Mapping[str, str]) -> list[str]:
    """Returns the tokens of a request: `X-Api-Key`, which Anthropic's clients send, then `Authorization: Bearer`. A client may
    send the key of another service beside ours. `headers`: names in lower case."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    given = [headers.get("x-api-key", ""), bearer if scheme.lower() == "bearer" else ""]
    return [token.strip() for token in given if token.strip()]


def is_valid_token(token: str) -> bool:
    """Long enough, and only characters that a header can carry."""
    return len(token) >= MIN_TOKEN_CHARS and all("!" <= letter <= "~" for letter in token)


def is_same_origin(origin: str, host: str) -> bool:
    """Whether a page at `origin` was served by `host`."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:
        return False


def _host_name(header: str) -> str | None:
    """Returns the name in a Host header, without port and brackets; None if it is invalid."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname


# -- the middleware

_READ_TO_REFUSE = 4
"""A body that is too large is read up to so many times the limit, and not kept: if it is not read, the connection is reset, and
most clients do not see the answer."""

_ALWAYS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
_HEADERS = [(name.encode(), value.encode()) for name, value in _ALWAYS.items()]


class _Refused(Exception):
    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers


class SecurityMiddleware:
    """ASGI application in front of another one. `error_body(path, status, detail)` returns the JSON of a refusal.

    Starlette's middleware covers none of these limits, and its host check does not support loopback addresses.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: AccessPolicy,
        *,
        max_body_bytes: int,
        body_seconds: float = 10.0,
        answer_seconds: float = 30.0,
        error_body: Callable[[str, int, str], Mapping[str, Any]] = lambda path, status, detail: {"detail": detail},
    ) -> None:
        self._app = app
        self._access = access
        self._max_body_bytes = max_body_bytes
        self._body_seconds = body_seconds
        self._answer_seconds = answer_seconds
        self._error_body = error_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        try:
            body = await self._admitted(scope, receive)
            async with asyncio.timeout(self._answer_seconds):
                await self._app(scope, _replayed(body, receive), send_on)
        except _Refused as refused:
            await self._refuse(scope, send_on, refused)
        except TimeoutError:
            if status == 0:
                await self._refuse(scope, send_on, _Refused(503, f"no answer within {self._answer_seconds:g} seconds"))
        except Exception:
            logger.exception("%s %s was not answered", scope["method"], scope["path"])
            if status == 0:
                await self._refuse(scope, send_on, _Refused(500, "internal error; see the service's log"))

    async def _admitted(self, scope: Scope, receive: Receive) -> bytes:
        """Returns the body of an accepted request."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._access.accepts_host(host):
            raise _Refused(421, "unknown Host; use the address that the service listens on")
        origin = headers.get("origin")
        if origin is not None and not is_same_origin(origin, host):
            raise _Refused(403, "requests from pages of other origins are not allowed")
        if not self._access.is_authorized(scope["path"], tokens_of(headers)):
            words = (
                "the token is missing or is none of this service; send it as Authorization: Bearer … or as X-Api-Key"
            )
            raise _Refused(401, words, **{"www-authenticate": "Bearer"})
        body = await self._read(headers, receive)
        if body and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise _Refused(415, "a body must be JSON, with Content-Type: application/json")
        return body

    async def _read(self, headers: dict[str, str], receive: Receive) -> bytes:
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise _Refused(415, "a body must not be compressed", connection="close")
        if {"content-length", "transfer-encoding"} <= headers.keys():  # another reader sees another end (RFC 9112, 6.3)
            raise _Refused(400, "a request has either Content-Length or Transfer-Encoding", connection="close")
        limit, size, parts = self._max_body_bytes, 0, list[bytes]()
        too_large = _Refused(413, f"a body may hold {limit:,} bytes at most", connection="close")
        declared = headers.get("content-length", "0")
        if "expect" in headers and (
            len(declared) > 18 or int(declared) > limit
        ):  # the client waits for permission to send
            raise too_large
        try:
            async with asyncio.timeout(self._body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refused(400, "the request ended early")
                    size += len(body := message.get("body", b""))
                    is_whole = not message.get("more_body", False)
                    if size > limit:
                        parts.clear()
                        if is_whole or size > _READ_TO_REFUSE * limit:
                            break
                        continue
                    parts.append(body)
                    if is_whole:
                        return b"".join(parts)
        except TimeoutError:
            if size <= limit:
                words = f"the body did not arrive within {self._body_seconds:g} seconds"
                raise _Refused(408, words, connection="close") from None
        raise too_large

    async def _refuse(self, scope: Scope, send: Send, refused: _Refused) -> None:
        body = json.dumps(self._error_body(scope["path"], refused.status, str(refused)), ensure_ascii=False).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refused.headers}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": refused.status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})


def _replayed(body: bytes, receive: Receive) -> Receive:
    is_given = False

    async def replay() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
