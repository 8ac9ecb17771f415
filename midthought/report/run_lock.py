"""Lock of a run folder: one process works in it at a time. What a run was started with: the command, the versions, the
machine.

The lock is the kernel's (`flock`), so it ends with its process; NFS 4 extends it to other hosts. The lock file names the
holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import platform
import shlex
import socket
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from midthought.errors import RunLockedError
from midthought.files.regular import read_json_object

FILE_NAME = ".lock"
NUM_TRIES, PAUSE_SECONDS = 10, 0.02
"""Tries to get a lock, because `is_held` holds it for a moment."""
_log = logging.getLogger(__name__)
_held: dict[Path, RunLock] = {}
"""Locks of this process: a second user of the same folder in this process shares the lock."""


class RunLock:
    """Lock of one folder. `acquire` and `release` are counted within a process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self._num_users = 0

    @classmethod
    def acquire(cls, folder: Path) -> RunLock:
        """Locks an existing folder. Raises `RunLockedError` if another process holds its lock, or if the lock is not a file."""
        path = folder.resolve() / FILE_NAME
        if path not in _held:
            _held[path] = cls(path, _locked(path))
        _held[path]._num_users += 1
        return _held[path]

    @classmethod
    def is_held(cls, folder: Path) -> bool:
        """Whether a process works in the folder; False if the file system has no locks."""
        path = folder.resolve() / FILE_NAME
        if path in _held or not path.is_file():  # opening a named pipe would not end
            return path in _held
        with contextlib.suppress(OSError), path.open("rb") as file:
            return not _try_lock(file.fileno(), fcntl.LOCK_SH)
        return False

    def release(self) -> None:
        """Releases the lock when the last user in this process is done."""
        self._num_users -= 1
        if self._num_users == 0 and _held.get(self.path) is self:  # not in a forked process
            del _held[self.path]
            with contextlib.suppress(OSError):  # its disk may be gone
                os.ftruncate(self.descriptor, 0)
            os.close(self.descriptor)


def _locked(path: Path) -> int:
    """Returns a descriptor that holds the lock. Raises as `RunLock.acquire`."""
    if path.exists() and not path.is_file():
        raise RunLockedError(f"{path} is not a file; remove it, or give another folder")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        is_ours = _try_lock(descriptor, fcntl.LOCK_EX, NUM_TRIES)
    except OSError as error:
        _log.warning("%s: this file system has no locks (%s); start no second run in this folder", path.parent, error)
        is_ours = True
    if not is_ours:
        os.close(descriptor)
        raise RunLockedError(f"{path.parent} is in use{_holder(path)}; wait until it ends, or give another folder")
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _try_lock(descriptor: int, kind: int, num_tries: int = 1) -> bool:
    """Returns whether it got the lock. Raises `OSError` if the file system has no locks."""
    for number in range(num_tries):
        time.sleep(PAUSE_SECONDS if number else 0.0)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
    return False


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError, LookupError):
        return " by process {pid} on host {host} since {since}".format_map(read_json_object(path))
    return ""


def _forget() -> None:
    """In a forked process: the lock is the parent's, and ends with the parent."""
    for lock in _held.values():
        os.close(lock.descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


_PACKAGES = ("midthought", "torch", "transformers", "tokenizers", "peft", "vllm", "ray", "numpy")


def command() -> str:
    """Returns the command line of this process, as a shell reads it."""
    program, *arguments = sys.argv or [""]
    return shlex.join([Path(program).name, *arguments])


def versions() -> dict[str, str]:
    """Returns the installed versions of Python and of the packages that matter for results, without importing them."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**found, "platform": platform.platform(terse=True)}
