"""Errors of disks and file systems as one sentence: the path, the cause, the remedy.

Libraries report them in their own ways: as `OSError` (Python, Arrow), or as another exception with the number in its text
(safetensors, tokenizers and LanceDB, which are written in Rust).
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from midthought.errors import CheckpointError, MidthoughtError, StorageError

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
