"""`manifest.json`: sizes and SHA-256 of the files of a folder, written with them and compared when they are read again.

Does not depend on what the files hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from midthought.files.regular import atomic_path, read_json_object

MANIFEST = "manifest.json"
FORMAT = 1


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
