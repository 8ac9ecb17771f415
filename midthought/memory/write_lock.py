"""Lock of a memory's folder: one process writes at a time. Readers need no lock. A killed process leaves no lock behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from midthought.errors import MemoryStoreError


@contextlib.contextmanager
def only_writer(folder: Path, name: str) -> Iterator[None]:
    """Holds the lock `NAME.lock` in the folder, which is created; at the end the file is removed, and the folder if it is empty.

    Raises MemoryStoreError if another process holds it. Does nothing on systems without `flock`.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.lock"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_current = path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino
    except BlockingIOError:
        is_current = False
    except OSError:  # a file system without locks
        is_current = True
    if not is_current:
        os.close(descriptor)
        raise MemoryStoreError(
            f"{folder}: another process is writing this memory (table {name!r}); wait until it has finished, then try again"
        )
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        with contextlib.suppress(OSError):  # it holds the memory
            folder.rmdir()
