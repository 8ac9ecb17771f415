"""Lock of a run folder: one process writes in it at a time. The lock file has the process, its host and start time.

Works on network file systems: the file's contents name the holder, and its modification time is a heartbeat. `flock`
only makes reading and writing that file atomic; if the file system lacks it, the file is read again after writing. Not
`filelock`: it needs `flock`, or leaves its lock behind when a process is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from midthought.errors import RunLockedError
from midthought.files.regular import read_json_object

FILE_NAME = ".lock"
HEARTBEAT_SECONDS = 30.0
SILENCE_SECONDS = 600.0
"""A holder on another host without a heartbeat for this long is considered dead."""

_held: dict[Path, RunLock] = {}
"""Locks of this process: a second user of the same folder in this process shares the lock."""


class RunLock:
    """Lock of one folder. `acquire` and `release` are counted within a process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.resolve() / FILE_NAME
        self._record: dict[str, Any] = {}
        self._num_users = 0
        self._is_over = threading.Event()

    @property
    def token(self) -> object:
        """Identifies this lock among all that were ever acquired."""
        return self._record.get("token")

    @classmethod
    def acquire(cls, folder: Path) -> RunLock:
        """Locks an existing folder. Raises `RunLockedError` if another process holds its lock, or if the lock is not a file.

        The lock of a killed process is taken over at once on the same host, else after `SILENCE_SECONDS`, if then no heartbeat
        comes for one and a half `HEARTBEAT_SECONDS`.
        """
        path = folder.resolve() / FILE_NAME
        lock = _held.get(path)
        if lock is None or lock._record["pid"] != os.getpid():
            lock = cls(folder)
            lock._take()
            _held[path] = lock
        lock._num_users += 1
        return lock

    @classmethod
    def is_held(cls, folder: Path) -> bool:
        """Whether a process works in the folder; of another host, whether one did in the last `SILENCE_SECONDS`."""
        lock = cls(folder)
        holder = lock._read()
        with contextlib.suppress(OSError):
            return bool(holder) and lock._is_alive(holder)
        return False  # the time on the file system cannot be read in a folder without the permission to write

    def release(self) -> None:
        """Releases the lock when the last user in this process is done."""
        self._num_users -= 1
        if self._num_users == 0 and self._record["pid"] == os.getpid():
            self._free()

    def _take(self) -> None:
        self._record = {
            **_here(),
            "pid": os.getpid(),
            "process_started": _start_of(os.getpid()),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "token": secrets.token_hex(8),
        }
        if self.path.exists() and not self.path.is_file():
            raise RunLockedError(f"{self.path} is not a file; remove it, or give another folder")
        with self._exclusively() as is_atomic:
            holder = self._read()
            if holder and self._is_alive(holder):
                raise RunLockedError(self._in_use(holder))
            self._write(json.dumps(self._record))
        if not is_atomic:
            time.sleep(1.0)
            if self._read() != self._record:
                raise RunLockedError(self._in_use(self._read()))
        threading.Thread(target=self._send_heartbeats, name="run-lock", daemon=True).start()
        atexit.register(self._free_if_here)

    def _free(self) -> None:
        self._is_over.set()
        atexit.unregister(self._free_if_here)
        _held.pop(self.path, None)
        if not self.path.exists():  # its disk is gone; a file in the mount point would be another one
            return
        with contextlib.suppress(OSError), self._exclusively():  # the folder may be gone
            if self._read() == self._record:
                self._write("")

    def _free_if_here(self) -> None:
        if self._record["pid"] == os.getpid():
            self._free()

    def _send_heartbeats(self) -> None:
        while not self._is_over.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    # -- the file ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[bool]:
        """Holds `flock` on the lock file; yields False if the file system lacks it."""
        import fcntl

        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)

    def _read(self) -> dict[str, Any]:
        if not self.path.is_file():  # reading a named pipe would not end
            return {}
        try:
            record = read_json_object(self.path)
        except (OSError, ValueError):  # a killed process may leave a partial file
            return {}
        return record if {"host", "pid", "since"} <= record.keys() else {}

    def _write(self, text: str) -> None:
        with self.path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _is_alive(self, holder: dict[str, Any]) -> bool:
        if _is_here(holder):
            started = _start_of(holder["pid"])
            is_running = started is not None and started == holder.get("process_started")
            return is_running and (holder["pid"] != os.getpid() or _holds(holder.get("token")))
        return 0 <= self._silence_seconds() < SILENCE_SECONDS or self._is_heard()

    def _is_heard(self) -> bool:
        """Whether a heartbeat comes while this process waits: after a jump of the clock, a living holder seems silent."""
        before, deadline = self.path.stat().st_mtime_ns, time.monotonic() + 1.5 * HEARTBEAT_SECONDS
        while time.monotonic() < deadline:
            time.sleep(HEARTBEAT_SECONDS / 10)
            if self.path.stat().st_mtime_ns != before:
                return True
        return False

    def _silence_seconds(self) -> float:
        """Seconds since the last heartbeat, by the file system's clock."""
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=FILE_NAME) as now:
            return os.stat(now.name).st_mtime - self.path.stat().st_mtime

    def _in_use(self, holder: dict[str, Any]) -> str:
        who = f"process {holder.get('pid')} on host {holder.get('host')} since {holder.get('since')}"
        if _is_here(holder):
            remedy = "wait until it ends, or give another folder"
        else:
            remedy = (
                f"wait until it ends; if it does not exist any more, remove {self.path} (it is considered dead "
                f"{SILENCE_SECONDS:.0f} s after its last heartbeat, which was {self._silence_seconds():.0f} s ago)"
            )
        return f"{self.path.parent} is in use by {who}; {remedy}"


def _holds(token: object) -> bool:
    """Whether this process holds a lock with this token. It does not if it released the lock while the disk was gone."""
    return any(lock.token == token for lock in _held.values())


def _here() -> dict[str, str]:
    """This host: its name, and its machine id, as several may be called `localhost`."""
    machine = Path("/etc/machine-id")
    return {"host": socket.gethostname(), "machine": machine.read_text().strip() if machine.is_file() else ""}


def _is_here(holder: dict[str, Any]) -> bool:
    return _here().items() <= holder.items()


def _start_of(pid: int) -> str | None:
    """Returns when a process of this host started, in the system's format (empty if unknown); None if it does not exist."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # it exists and is another user's
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return None if words[0] in "ZX" else f"{boot} {words[19]}"
