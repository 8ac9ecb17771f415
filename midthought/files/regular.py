"""Files that must be regular, because reading a named pipe blocks, and a device has no end: opened with limits of sizes and
lines, and written atomically, so that a reader sees the old file or the new one.

Does not depend on what the files hold.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from midthought.errors import OutputPathError, StorageError

MAX_BYTES = 256 * 1024 * 1024
"""Size of a file that is read as a whole, and of one line of a log."""
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_regular(path: str | os.PathLike[str], max_bytes: int | None = None) -> BinaryIO:
    """Opens a regular file, or a link to one, for reading.

    Raises `StorageError`, with the path and the remedy, for a pipe, socket or device, and for a file of more than `max_bytes`;
    else `OSError` as `open`.
    """
    _require_regular(path)
    if max_bytes is not None and (size := os.stat(path).st_size) > max_bytes:
        raise StorageError(
            f"{path} has {size:,} bytes, and a file of its kind has at most {max_bytes:,}; restore it from a copy"
        )
    return open(path, "rb")


def read_regular_text(path: str | os.PathLike[str], errors: str = "strict") -> str:
    """Returns the text (UTF-8) of a file. Raises as `open_regular`, and `UnicodeDecodeError`."""
    with open_regular(path, MAX_BYTES) as file:
        return file.read().decode("utf-8", errors)


def read_json_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the JSON object in a file. Raises as `open_regular`, and `ValueError` for anything else, with the reason."""
    return json_object(read_regular_text(path))


def json_object(text: str | bytes) -> dict[str, Any]:
    """Returns the JSON object that a text is. Raises `ValueError`, with the reason, for anything else."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def lines_of(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Iterator[bytes]:
    """Yields the lines of a file with their line feeds. Raises as `open_regular`, and `StorageError` for a line of more than
    `max_bytes`."""
    with open_regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(max_bytes + 1), b""), start=1):
            if len(line) > max_bytes:
                raise StorageError(
                    f"{path}, line {number} has more than {max_bytes:,} bytes; no program of this library writes such a line, so "
                    "restore the file from a copy"
                )
            yield line


def require_regular_files(folder: Path) -> None:
    """Raises `StorageError` for the first entry of a folder that is a pipe, socket or device, or a link to one: other libraries
    would wait for it."""
    for path in folder.iterdir() if folder.is_dir() else ():
        _require_regular(path)


def special_kind(path: str | os.PathLike[str]) -> str | None:
    """Returns what a path is, or a link there leads to, if that is a pipe, socket or device: `a named pipe`; else None."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except OSError:  # there is nothing, or it cannot be reached
        return None


def _require_regular(path: str | os.PathLike[str]) -> None:
    if kind := special_kind(path):
        raise StorageError(f"{path} is {kind}, not a file; move it away, and restore the file from a copy")


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
