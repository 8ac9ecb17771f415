"""Folders that this library writes: marked as its own, replaced in one step, with the sizes and digests of their files
(`manifest.json`), which are compared when they are read again. A folder of the user is never replaced, nor, by commands that
write a named file, a file of the user.

Does not depend on what the files hold.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from midthought.errors import OutputPathError
from midthought.files.regular import (
    atomic_path,
    json_object,
    lines_of,
    read_json_object,
    require_no_special_file,
    storage_errors,
)

MANIFEST = "manifest.json"
FORMAT = 1
MARK = ".midthought.json"
"""File that marks a folder: `{"format": 1, "kind": "checkpoint", "files": ["state.json", …]}`."""
_NOT_CONTENT = (".DS_Store", ".nfs", f".{MARK}.")
"""Beginnings of the names of files that file systems and `mark` make."""


def describe(file: Path) -> dict[str, Any]:
    """Returns `{"size", "sha256"}` of a file."""
    with file.open("rb") as stream:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def describe_text(text: str) -> dict[str, Any]:
    """Returns `describe` of a file with this text, in UTF-8."""
    data = text.encode("utf-8", errors="replace")
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """Returns the content of a folder's manifest; None if it has none. Raises `ValueError`, with the reason, if it cannot be
    read."""
    try:
        content = read_json_object(folder / MANIFEST)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read ({' '.join(str(error).split())[:200]})") from None
    if content.get("format") != FORMAT:
        raise ValueError(f"has format {content.get('format')!r}, this version reads {FORMAT}")
    if not isinstance(content.get("files"), dict):
        raise ValueError("cannot be read (it lists no files)")
    return content


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Writes the manifest of these files of a folder."""
    content = {"format": FORMAT, "files": {name: describe(folder / name) for name in sorted(names)}}
    with atomic_path(folder / MANIFEST) as partial:
        partial.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def damage_in(folder: Path, below: str = "") -> str:
    """Returns what is wrong with the first file that is not as a folder's manifest describes it, or with the manifest; empty if
    nothing is, and without a manifest.

    A manifest's `files` has, by name, what `describe` returns, or a list of such descriptions, one of which must fit. A name that
    ends with `/` is a folder. Only names that start with `below` are looked at.
    """
    try:
        manifest = manifest_of(folder)
    except ValueError as error:
        return f"is damaged: {MANIFEST} {error}"
    named = (
        {} if manifest is None else {name: each for name, each in manifest["files"].items() if name.startswith(below)}
    )
    return next((found for name, expected in named.items() if (found := _damage_of(folder, name, expected))), "")


def descriptions(expected: Any) -> list[dict[str, Any]]:
    """Returns the descriptions that a manifest has of one file; values of other types are left out."""
    return [each for each in (expected if isinstance(expected, list) else [expected]) if isinstance(each, dict)]


def _damage_of(folder: Path, name: str, expected: Any) -> str:
    path = folder / name
    if name.endswith("/"):
        return "" if path.is_dir() else f"is not whole: {name} is missing"
    if not path.is_file():
        return f"is not whole: {name} is missing"
    options = descriptions(expected)
    sizes = [option.get("size") for option in options]
    try:
        size = path.stat().st_size
        if size not in sizes:
            return f"is not whole: {name} has {size} bytes, not {sizes[-1] if sizes else 'as many as written'}"
        return "" if describe(path) in options else f"is damaged: {name} is not as it was written"
    except OSError as error:
        return f"is damaged: {name} cannot be read ({error.strerror})"


def mark(folder: Path, kind: str, *, lists_files: bool = False) -> None:
    """Marks a folder as written by this library. With `lists_files`, any file that is added later belongs to the user."""
    content: dict[str, Any] = {"format": FORMAT, "kind": kind}
    if lists_files:
        content["files"] = sorted(_files(folder))
    with atomic_path(folder / MARK) as partial:  # a kill never leaves half a mark
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def kind_of(folder: Path) -> str | None:
    """Returns the kind of a marked folder; None if it has no mark."""
    return _read_mark(folder).get("kind")


def require_ours(path: Path, kind: str, *, in_run: bool = False) -> None:
    """Raises `OutputPathError` unless this library may write a folder of this kind at `path`.

    It may if `path` does not exist, is an empty folder, is marked with the same kind, or has no mark and is `in_run`.
    """
    remedy = "give another path, or remove it yourself"
    if path.is_dir():
        found = sorted(entry.name for entry in path.iterdir())
        marked = kind_of(path)
        if not found or (marked is None and in_run):
            return
        if marked is None:
            shown = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
            raise OutputPathError(
                f"{path} is not empty ({shown}) and was not written by midthought (it holds no {MARK}), so it is not "
                f"replaced; {remedy}"
            )
        if marked != kind:
            raise OutputPathError(f"{path} is a {marked} that midthought wrote, and would become a {kind}; {remedy}")
        listed = _read_mark(path).get("files")
        if isinstance(listed, list) and (added := sorted(_files(path) - set(map(str, listed)))):
            raise OutputPathError(
                f"{path} holds {added[0]!r}, which midthought did not write, so the {kind} there is not replaced; move "
                "that file, or give another path"
            )
    elif path.exists():
        raise OutputPathError(f"{path} is a file, and a folder with a {kind} would replace it; {remedy}")


def require_our_lines(path: Path, keys: Collection[str]) -> None:
    """Raises `OutputPathError` if there is a pipe, socket or device, or a file whose first line, except blank ones, is no JSON
    object with these keys, as each line is that the caller writes. A file of blank lines may be replaced."""
    require_no_special_file(path)
    if not path.is_file():
        return
    line = next((line for line in lines_of(path) if line.strip()), b"")
    with suppress(ValueError):
        if not line or set(keys) <= json_object(line).keys():
            return
    raise not_ours(path)


def not_ours(path: Path) -> OutputPathError:
    """Returns the error for a path that holds something else than what would be replaced."""
    return OutputPathError(
        f"{path} was not written by this command, so it is not replaced; give another path, or remove it yourself"
    )


@contextmanager
def replaced(path: str | Path, kind: str, *, in_run: bool = False, editable: Collection[str] = ()) -> Iterator[Path]:
    """Yields an empty folder next to `path`; after the block the folder is flushed to disk and renamed to `path`, with a manifest
    of its files (`manifest.json`), without those that a user may edit.

    If the block raises, `path` is unchanged and the new folder is removed. Raises `OutputPathError` as `require_ours`, before
    anything is written, and `StorageError` if the disk is full, read-only or gone. A killed process leaves the old folder or the
    new one. Between the two renames the old one has another name, which `recover` finds.
    """
    target = Path(os.path.realpath(path))  # a link is kept and points to the new folder
    require_ours(target, kind, in_run=in_run)
    recover(target)
    new = target.with_name(f".{target.name}.new")
    with storage_errors(target.parent):
        if new.is_dir() and ((new / MARK).is_file() or not _files(new)):  # left by a killed process
            remove(new)
        if new.exists():
            raise _in_the_way(new, target)
        new.mkdir(parents=True)
        try:
            mark(new, kind)
            yield new
            _complete(new, kind, editable)
            _swap(new, target, kind)
        finally:
            with suppress(OSError):
                remove(new)


def _complete(new: Path, kind: str, editable: Collection[str]) -> None:
    """Adds the manifest and the list of files, and flushes everything to disk."""
    write_manifest(new, _files(new) - set(editable))
    mark(new, kind, lists_files=True)
    for entry in [*new.rglob("*"), new]:
        _flush(entry)


def recover(path: str | Path) -> None:
    """Completes an interrupted replacement: restores the old folder if there is no new one, else removes it."""
    target = Path(os.path.realpath(path))
    old = _old(target)
    if kind_of(old) is None:
        return
    if target.exists():
        remove(old)
    else:
        old.rename(target)


def _in_the_way(path: Path, target: Path) -> OutputPathError:
    return OutputPathError(f"{path} has files that midthought does not know, so {target} is not replaced; remove it")


def _swap(new: Path, target: Path, kind: str) -> None:
    old = _old(target)
    if target.exists() and any(target.iterdir()):
        if old.is_dir() and any(old.iterdir()):  # `recover` has removed ours
            raise _in_the_way(old, target)
        if kind_of(target) is None:
            mark(target, kind)
        target.rename(old)
    try:
        new.rename(target)  # replaces an empty folder
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    _flush(target.parent)
    with suppress(OSError):
        remove(old)


def remove(folder: Path) -> None:
    """Removes a marked folder, its mark last: what a killed process leaves of it is still known as ours."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != MARK:
            entry.unlink()
    if folder.is_dir():
        (folder / MARK).unlink(missing_ok=True)
        folder.rmdir()


def _old(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _files(folder: Path) -> set[str]:
    found = (entry for entry in folder.rglob("*") if not entry.is_dir() and entry.name != MARK)
    return {file.relative_to(folder).as_posix() for file in found if not file.name.startswith(_NOT_CONTENT)}


def _read_mark(folder: Path) -> dict[str, Any]:
    try:
        return read_json_object(folder / MARK)
    except (OSError, ValueError):
        return {}


def _flush(entry: Path) -> None:
    if os.name != "posix" and entry.is_dir():
        return
    descriptor = os.open(entry, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
