"""Addresses: Unix sockets, which hosts are this machine, which may receive a key; keys in use. The TLS context of all clients."""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from midthought.errors import SettingsError

PLAIN_HTTP_HOSTS = "MIDTHOUGHT_PLAIN_HTTP_HOSTS"
"""Environment variable: hosts, separated by commas, to which keys may go without encryption, for a network that you trust."""
MIN_KEY_CHARS = 8
"""A shorter value of a variable or header is not treated as a key: it would occur in ordinary text."""
_KEY_NAME = re.compile(
    r"(?:^|[_-])(?:API[_-]?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTHORIZATION|COOKIE)(?:[_-]|$)",
    re.IGNORECASE,
)
_keys_read: set[str] = set()


def is_key_name(name: str) -> bool:
    """Whether an environment variable or a header of this name holds a key.

    >>> is_key_name("WANDB_API_KEY"), is_key_name("Authorization"), is_key_name("KEYBOARD")
    (True, True, False)
    """
    return _KEY_NAME.search(name) is not None


def without_keys(text: str) -> str:
    """Returns the text in which every key of this process is replaced by `…`: values of environment variables that are named
    like keys, and every key that this process has sent or passed on."""
    named = {key for name, key in os.environ.items() if is_key_name(name) and len(key) >= MIN_KEY_CHARS}
    for key in sorted(named | _keys_read, key=len, reverse=True):
        text = text.replace(key, "…")
    return text


def is_loopback(host: str) -> bool:
    """Whether a host name or address, with or without brackets, is this machine's loopback interface.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("[::1]"), is_loopback("10.0.0.1")
    (True, True, True, False)
    """
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def socket_path(url: str) -> Path | None:
    """Returns the path of the Unix socket that a URL names, None for a URL with a host.

    >>> socket_path("unix:/run/user/1000/vllm.sock"), socket_path("http://127.0.0.1:8000")
    (PosixPath('/run/user/1000/vllm.sock'), None)
    """
    return Path(url.removeprefix("unix:")) if url.startswith("unix:/") else None


def is_local(url: str) -> bool:
    """Whether a URL names a Unix socket or this machine's loopback interface."""
    return socket_path(url) is not None or is_loopback(urlsplit(url).hostname or "")


@functools.cache
def tls_context(*, trust_env: bool = True) -> ssl.SSLContext:
    """Returns the TLS settings for httpx clients. All clients share them, because each context reads the certificates for 30 ms.

    `trust_env`: read `SSL_CERT_FILE` and `SSL_CERT_DIR`, as httpx does.
    """
    import httpx

    return httpx.create_ssl_context(trust_env=trust_env)


def client_options(url: str) -> dict[str, Any]:
    """Returns the options of an httpx client for a URL: its TLS settings, and no proxy for this machine's own ports."""
    is_remote = not is_local(url)
    return {"trust_env": is_remote, "verify": tls_context(trust_env=is_remote)}


def read_key(variable: str | None, *urls: str) -> str:
    """Returns the key in an environment variable, for requests to these URLs; empty without a variable.

    Raises SettingsError if the variable is not set or holds no key, and if the key would go unencrypted to another machine.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not re.fullmatch(r"[!-~]+", key):
        raise SettingsError(
            f"the environment variable {variable} is not set, or contains characters that no key contains (blanks, line "
            "ends); store the key in it"
        )
    _keep_key(key, variable, *urls)
    return key


def keep_keys(named: Mapping[str, str], *urls: str) -> None:
    """Notes which values of variables or headers are keys, as `is_key_name` says. Raises SettingsError if one would go
    unencrypted to another machine."""
    for name, value in named.items():
        key = value.removeprefix("Bearer ").strip()
        if is_key_name(name) and len(key) >= MIN_KEY_CHARS:
            _keep_key(key, name, *urls)


def _keep_key(key: str, name: str, *urls: str) -> None:
    permitted = os.environ.get(PLAIN_HTTP_HOSTS, "").replace(" ", "").lower().split(",")
    for url in urls:
        host = (urlsplit(url).hostname or "").lower()
        if urlsplit(url).scheme == "http" and not is_loopback(host) and host not in permitted:
            raise SettingsError(
                f"the key in {name} would travel unencrypted to {host}: use https, or, in a network that you trust, "
                f"set {PLAIN_HTTP_HOSTS}={host}"
            )
    _keys_read.add(key)
