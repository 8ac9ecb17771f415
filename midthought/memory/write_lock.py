"""Lock of a memory's folder: one process writes at a time. Readers need no lock. A killed process leaves no lock behind."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def only_writer(folder: Path, name: str) -> Iterator[None]:
    """Holds the lock `NAME.lock` in the folder, which is created; at the end the file is removed, and the folder if it is empty.

    Waits, with a logged warning, while another process holds it. Does nothing on file systems without `flock`, and in a folder
    that cannot be written, which a build without changes does not need.
    """
    path = folder / f"{name}.lock"
    descriptor = _locked(path)
    try:
        yield
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            with contextlib.suppress(OSError):  # it holds the memory
                folder.rmdir()


def _locked(path: Path) -> int | None:
    """Returns the descriptor of the locked file; None in a read-only folder."""
    import fcntl

    while True:  # until the file is not one that its last holder removed
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        except FileNotFoundError:  # the last holder removed the folder
            continue
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and path.parent.is_dir():
                return None
            raise
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.warning("%s: another process is writing this memory; waiting until it has finished", path.parent)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        os.close(descriptor)
