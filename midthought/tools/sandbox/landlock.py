"""Restricts this process's file access to lists of readable and writable paths, with Linux's Landlock.

https://docs.kernel.org/userspace-api/landlock.html. Needs no privileges; cannot be undone; child processes inherit it.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1
_MIN_VERSION = 3
"""Linux 6.2: the first version that also restricts `truncate`."""

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_FILE, _MAKE_FILE, _TRUNCATE, _USE_DEVICE = 1 << 5, 1 << 8, 1 << 14, 1 << 15
_ALL_FILE_RIGHTS = (1 << 15) - 1
_NETWORK_RIGHTS = 3
"""TCP bind and connect."""
_SCOPES = 3
"""Abstract sockets, and signals to other processes."""
_READ = _READ_FILE | _READ_DIR
_WRITE = _READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_FILE | _TRUNCATE
_OF_A_FILE = _READ_FILE | _WRITE_FILE | _TRUNCATE


def restrict(libc: ctypes.CDLL, readable: Iterable[str], writable: Iterable[str]) -> None:
    """Restricts this process to these paths and everything below them. In writable folders it may create and remove plain
    files, but no folders, links or devices. Paths that do not exist are skipped. Raises OSError without Landlock.
    """
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    if version < _MIN_VERSION:
        raise OSError("the kernel has no Landlock of version 3 or later (Linux 6.2)")
    rules = _require(libc.syscall(_CREATE_RULESET, *_handled(version), 0), "landlock_create_ruleset")
    for rights, paths in ((_READ, readable), (_WRITE, writable)):
        for path in paths:
            _allow(libc, rules, path, rights)
    _require(libc.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _handled(version: int) -> tuple[bytes, ctypes.c_size_t]:
    """Returns the ruleset attributes with every access right that this version of Landlock can restrict."""
    fields = [_ALL_FILE_RIGHTS | (_USE_DEVICE if version >= 5 else 0)]
    fields += [_NETWORK_RIGHTS] if version >= 4 else []
    fields += [_SCOPES] if version >= 6 else []
    packed = struct.pack(f"={len(fields)}Q", *fields)
    return packed, ctypes.c_size_t(len(packed))


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_A_FILE
    rule = struct.pack("=Qi", rights, descriptor)
    _require(libc.syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0), f"landlock_add_rule for {path}")
    os.close(descriptor)


def _require(result: int, action: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{action}: {os.strerror(ctypes.get_errno())}")
    return result
