"""Writing a file atomically: a reader sees the old file or the new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from midthought.errors import OutputPathError
from midthought.files.regular import special_kind


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder, which replaces `path` at the end, or is deleted if an error is raised.

    An `OSError` about the temporary path, or about no path, such as that of a full disk, has `path` as its `filename`. Raises
    `OutputPathError` as `require_no_special_file`, before anything is written.
    """
    path = Path(path)
    require_no_special_file(path)
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


def require_no_special_file(path: Path) -> None:
    """Raises `OutputPathError` if there is a pipe, socket or device, or a link to one: the new file would replace it."""
    if kind := special_kind(path):
        raise OutputPathError(f"{path} is {kind}, and a file would replace it; give the path of a file")
