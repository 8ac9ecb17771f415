"""Writing a file atomically: a reader sees the old file or the new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder, which replaces `path` at the end, or is deleted if an error is raised.

    An `OSError` about the temporary path, or about no path, such as that of a full disk, has `path` as its `filename`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(partial), partial):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # after an error of the disk, that one is raised
            partial.unlink(missing_ok=True)
