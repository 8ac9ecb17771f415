"""Access control of the service: allowed Host headers, loopback or token. Does not depend on routes or the server."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping, Sequence
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
