"""Who may ask: where the service listens, under which names, and with which token. Knows no search and no server."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from midthought.errors import SettingsError

MIN_TOKEN_CHARS = 16
OPEN_PATHS = frozenset({"/", "/page.css", "/page.js", "/healthz"})
"""What needs no token: the empty page, which asks for it, and the sign of life. None of them tells anything of the memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessPolicy:
    """What a request must bring.

    On a loopback address its Host must name this machine: a page from elsewhere whose name was made to point here
    (DNS rebinding) says its own. Beyond it, the token takes that place.
    """

    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, host: str, token_env: str | None, environ: Mapping[str, str] | None = None) -> AccessPolicy:
        """Raises SettingsError where the token is missing or short, and beyond loopback where none is asked for."""
        environ = os.environ if environ is None else environ
        if token_env is None:
            if not is_loopback(host):
                raise SettingsError(
                    f"--host {host} is reached from other machines, so the service needs a token: put one into an "
                    "environment variable and name it with --token-env; or take --host 127.0.0.1"
                )
            return cls(host=host)
        token = environ.get(token_env, "")
        if not is_valid_token(token):
            raise SettingsError(
                f"the environment variable {token_env} holds no token of {MIN_TOKEN_CHARS} or more visible ASCII "
                "characters; make one, e.g. with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        return cls(host=host, token=token)

    def accepts_host(self, header: str) -> bool:
        """Whether a request to this `Host` was meant for us."""
        if not is_loopback(self.host):
            return True
        name = _host_name(header)
        return name is not None and (name == self.host.lower() or name == "localhost" or _is_loopback_address(name))

    def is_authorized(self, path: str, authorization: str) -> bool:
        """Whether the request may go on; the time this takes says nothing of the token."""
        if self.token is None or path in OPEN_PATHS:
            return True
        scheme, _, given = authorization.partition(" ")
        same = hmac.compare_digest(_digest(given.strip()), _digest(self.token))
        return scheme.lower() == "bearer" and same


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    return host.lower() == "localhost" or _is_loopback_address(host.strip("[]"))


def is_valid_token(token: str) -> bool:
    """Long enough, and nothing that a header could not carry."""
    return len(token) >= MIN_TOKEN_CHARS and all("!" <= letter <= "~" for letter in token)


def is_same_origin(origin: str, host: str) -> bool:
    """Whether a page at `origin` came from the service at `host`."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:
        return False


def _host_name(header: str) -> str | None:
    """The name in a Host header, without port and brackets; None where it is no such thing."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname


def _is_loopback_address(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()
