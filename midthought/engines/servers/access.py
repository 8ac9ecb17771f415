"""Who may reach a server that is started here: only this user, through a Unix socket in a private folder or with a key.

Does not start servers. Weight and control routes of vLLM ask for no key, so it listens on a socket; SGLang has no sockets, but
its key protects every route except `/health`, `/ready` and `/metrics`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from pathlib import Path

from midthought.errors import SettingsError

_MAX_PATH = 100
"""Bytes of a socket's path; Linux permits 107, macOS 103."""
_OTHERS = 0o077
"""Permissions of the group and of all other users."""


def private_socket(path: Path) -> Path:
    """Returns the absolute path for a new socket that only this user reaches. Makes its folder with mode 0700 if there is none.

    Removes a socket at this path on which nobody listens. Raises `SettingsError` if a server listens there, if others may enter
    the folder, or if the path is too long for a socket.
    """
    path = path.absolute()
    if len(os.fsencode(path)) > _MAX_PATH:
        raise SettingsError(
            f"{path} is too long for a Unix socket: at most {_MAX_PATH} bytes; set TMPDIR, or the path, to a shorter one"
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_mode & _OTHERS:
        raise SettingsError(
            f"other users may enter {path.parent}, the folder of the server's socket: chmod 700 it, or name another folder"
        )
    if path.is_socket():
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
            if connection.connect_ex(str(path)) == 0:
                raise SettingsError(f"a server listens at {path} already; stop it, or name another path")
        path.unlink()
    elif path.exists():
        raise SettingsError(f"{path} exists and is no socket; name another path")
    return path


def new_key() -> str:
    """Returns a random key of 256 bits. It does not begin with `-`, which SGLang's argument parser would take for a flag."""
    return secrets.token_hex(32)


def write_key_file(folder: Path, key: str) -> Path:
    """Writes the configuration file that gives SGLang its key; others cannot read it, unlike a command line."""
    path = folder / "key.yaml"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump({"api-key": key}, file)  # YAML contains JSON
    return path
