"""Files that must be regular, because reading a named pipe blocks, and a device has no end: opened with limits of sizes and
lines, and written atomically, so that a reader sees the old file or the new one. Errors of disks and file systems as one
sentence: the path, the cause, the remedy. Does not depend on what the files hold.

Libraries report errors of a disk in their own ways: as `OSError` (Python, Arrow), or as another exception with the number in
its text (safetensors, tokenizers and LanceDB, which are written in Rust).
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError

from midthought.errors import CheckpointError, MidthoughtError, OutputPathError, StorageError

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


THEN_RESUME = "then continue with --resume (resume=True): what was saved before is intact"
_NUMBER = re.compile(r"\(os error (\d+)\)|\[errno (\d+)\]", re.IGNORECASE)
_FREE, _MOUNT, _PERMIT = (
    "free some space there",
    "check that its disk is mounted",
    "make it writable for this user, or give another path",
)
_GONE = ("the disk cannot be reached", _MOUNT)
_WRITING: Mapping[int, tuple[str, str]] = {
    errno.ENOSPC: ("no space is left on the device", _FREE),
    errno.EDQUOT: ("the disk quota is used up", _FREE),
    errno.EFBIG: ("the file would be larger than allowed here", "raise the limit (ulimit -f)"),
    errno.EROFS: ("the file system is read-only", _PERMIT),
    errno.EIO: ("the disk reports an error in reading or writing", "check the disk"),
    errno.ESTALE: _GONE,
    errno.ENODEV: _GONE,
    errno.ENXIO: _GONE,
    errno.ENOTCONN: _GONE,
}
"""Cause and remedy by `errno`. Errors of writing often have no path."""
_CAUSES: Mapping[int, tuple[str, str]] = {
    **_WRITING,
    errno.EACCES: ("permission is denied", _PERMIT),
    errno.EPERM: ("permission is denied", _PERMIT),
    errno.ENOENT: ("there is no such file or folder", _MOUNT),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "move that file, or give another path"),
    errno.EEXIST: ("there is a file instead of a folder", "move that file, or give another path"),
    errno.EISDIR: ("it is a folder, not a file", "move that folder, or give another path"),
    errno.ELOOP: ("the link leads to itself", "remove it, and restore the file from a copy"),
    errno.ENAMETOOLONG: ("the name is too long", "give a shorter path"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
    errno.ENFILE: ("too many files are open", "close other programs"),
}


def storage_error(error: BaseException, place: str | os.PathLike[str] | None = None) -> StorageError | None:
    """Returns an error of a file system as a `StorageError`; None if it is another error.

    With `place`, also None if the error concerns a path that is neither below this folder nor above it, or no known path and is
    no error of writing: it may come from a user's function.
    """
    number = _number_of(error)
    if isinstance(error, MidthoughtError) or number is None or number not in _CAUSES:
        return None
    name = getattr(error, "filename", None)
    path = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
    if place is not None and not (_concerns(path, Path(place)) if path is not None else number in _WRITING):
        return None
    cause, remedy = _CAUSES[number]
    return StorageError(f"{path or place or 'a file'}: {cause}; {remedy}")


@contextmanager
def storage_errors(place: str | os.PathLike[str], then: str = "") -> Iterator[None]:
    """Raises what `storage_error` returns for an error in the block. `then`: what to do after the remedy."""
    try:
        yield
    except StorageError as error:
        raise error if then in str(error) else StorageError(f"{error}; {then}") from error
    except Exception as error:
        found = storage_error(error, place)
        if found is None:
            raise
        raise StorageError(f"{found}; {then}" if then else str(found)) from error


_WRONG_VALUES = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, SafetensorError)


@contextmanager
def value_errors(place: object) -> Iterator[None]:
    """Raises `CheckpointError` if the block, which only reads the files of a run, finds values that no run writes: of another
    type, a missing key, a number that is too large."""
    try:
        yield
    except MidthoughtError:
        raise
    except _WRONG_VALUES as error:
        where = Path(traceback.extract_tb(error.__traceback__)[-1].filename).name
        raise CheckpointError(
            f"{place}: a value in its files is not as a run writes it ({where}: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}); restore the files from a copy, or give another run"
        ) from error


def _number_of(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _NUMBER.search(str(error)) if isinstance(error, Exception) else None
    return int(found[1] or found[2]) if found else None


def _concerns(path: Path, place: Path) -> bool:
    one, other = Path(os.path.abspath(path)), Path(os.path.abspath(place))
    return one.is_relative_to(other) or other.is_relative_to(one)
