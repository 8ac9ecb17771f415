"""Access control of the service: allowed Host headers, loopback or token. Does not depend on routes or the server."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from midthought.errors import SettingsError
from midthought.http.network import is_loopback

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
    def of(
        cls, host: str, token_env: str | None, environ: Mapping[str, str] | None = None, *, option: str = "--token-env"
    ) -> AccessPolicy:
        """Raises SettingsError if the token is missing or too short, or if the address is not loopback and no token is set.
        `option`: the option of the command that names the environment variable."""
        environ = os.environ if environ is None else environ
        if token_env is None:
            if not is_loopback(host):
                raise SettingsError(
                    f"--host {host} can be reached from other machines, so the service needs a token: put one into an "
                    f"environment variable and name it with {option}; or use --host 127.0.0.1"
                )
            return cls(host=host)
        token = environ.get(token_env, "")
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

    def is_authorized(self, path: str, authorization: str) -> bool:
        """Whether the request may proceed. Compares in constant time."""
        if path in OPEN_PATHS:
            return True
        given = token_of(authorization)
        if self.knows is not None:
            return self.knows(given)
        return self.token is None or hmac.compare_digest(given.encode(errors="surrogateescape"), self.token.encode())


def authorization_of(headers: Mapping[str, str]) -> str:
    """Returns the `Authorization` of a request. Anthropic's clients send `X-Api-Key`. `headers`: names in lower case."""
    return f"Bearer {headers['x-api-key']}" if "x-api-key" in headers else headers.get("authorization", "")


def token_of(authorization: str) -> str:
    """Returns the token in the value of an `Authorization` header; empty if there is none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


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
