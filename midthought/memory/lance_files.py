"""Looks at a table's files before LanceDB does: it waits for pipes, reads files of any size, and serves an older version if the
newest one's file is gone. Does not depend on what the tables hold."""

from __future__ import annotations

import json
from pathlib import Path

from midthought.errors import MemoryStoreError, StorageError
from midthought.regular_files import read_regular_text, require_regular_files

_HINT = "_versions/latest_version_hint.json"
"""Written by LanceDB after each commit: the version that it wrote."""
_MAX_HINT_BYTES = 64 * 1024


def require_readable_files(folder: Path) -> None:
    """Raises `StorageError` if an entry of a memory is a pipe, socket or device, or a file that LanceDB reads at once is too
    large."""
    require_regular_files(folder)
    for table in folder.glob("*.lance"):
        noted_version(folder, table.stem)


def noted_version(folder: Path, table: str) -> int | None:
    """Returns the newest version of a table by LanceDB's note; None if there is no note that can be read.

    Raises `StorageError` if the note is too large."""
    try:
        version = json.loads(read_regular_text(folder / f"{table}.lance" / _HINT, max_bytes=_MAX_HINT_BYTES))["version"]
    except StorageError:
        raise
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return version if type(version) is int and version < 2**63 else None


def require_noted(folder: Path, table: str, noted: int | None, newest: int) -> None:
    """Raises `MemoryStoreError` if a version was written that is newer than the newest one that is there."""
    if noted is not None and noted > newest:
        raise MemoryStoreError(
            f"{folder}: version {noted} of the table {table!r} was written, but its newest version is {newest}: a file in "
            f"{table}.lance/_versions is missing. Restore it from a copy, or, to go on with version {newest}, delete "
            f"{folder / f'{table}.lance' / _HINT}"
        )
