"""`notation.yaml`: how turns start in a folder's transcripts of a notation that is not recognized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from fnmatch import fnmatchcase
from pathlib import Path

from midthought.memory.folder_settings import FolderSettings
from midthought.memory.formats.declared_notation import DeclaredNotation

FILE_NAME = "notation.yaml"
EXAMPLE = """'"*.txt": "{speaker} - {time}: {text}"'"""


class Notations:
    """The notations in the `notation.yaml` of a transcript's folder and of the folders above it, up to `top`."""

    def __init__(self, top: Path) -> None:
        self._files = FolderSettings(top, FILE_NAME, EXAMPLE)
        self._known: dict[Path, _Patterns] = {}

    def of(self, path: Path) -> DeclaredNotation | None:
        """Returns the notation of one transcript: of the last pattern that its name matches, in the nearest file. None if none
        does. Raises TranscriptError if a file is not `pattern: template`, or `pattern: [template, …]`.
        """
        found: DeclaredNotation | None = None
        for file, written in self._files.of(path):
            if file not in self._known:
                self._known[file] = self._patterns(file, written)
            found = self._known[file].of(path) or found
        return copy(found)

    def unused(self) -> Iterator[str]:
        """Yields a sentence for each file with patterns that no name matched so far."""
        for file, patterns in self._known.items():
            if values := patterns.unused():
                yield self._files.unused(file, "no file has a name that matches", values)

    def _patterns(self, file: Path, written: Mapping[str, object]) -> _Patterns:
        found: dict[str, DeclaredNotation] = {}
        for pattern, value in written.items():
            templates = [value] if isinstance(value, str) else value
            if not isinstance(templates, list) or not templates or not all(isinstance(each, str) for each in templates):
                raise self._files.error(file, f"{pattern!r} has no notation but {value!r}")
            try:
                found[str(pattern)] = DeclaredNotation(templates)
            except ValueError as error:
                raise self._files.error(file, str(error)) from None
        return _Patterns(found)


class _Patterns:
    """The patterns of one file. Names are looked up, as a file may have one for each of thousands of transcripts."""

    def __init__(self, notations: Mapping[str, DeclaredNotation]) -> None:
        self._notations = notations
        self._numbers = {pattern: number for number, pattern in enumerate(notations)}
        self._used: set[str] = set()
        self._globs = [pattern for pattern in notations if set("*?[") & set(pattern)]

    def of(self, path: Path) -> DeclaredNotation | None:
        names = (path.name, path.stem)
        found = [pattern for pattern in names if pattern in self._numbers]
        found += [pattern for pattern in self._globs if any(fnmatchcase(name, pattern) for name in names)]
        self._used.update(found)
        return self._notations[max(found, key=self._numbers.__getitem__)] if found else None

    def unused(self) -> list[str]:
        """Returns the patterns that no name matched."""
        return [pattern for pattern in self._notations if pattern not in self._used]
