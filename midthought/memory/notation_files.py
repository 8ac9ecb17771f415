"""`notation.yaml`: how turns start in a folder's transcripts of a notation that is not recognized."""

from __future__ import annotations

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

    def of(self, path: Path) -> DeclaredNotation | None:
        """Returns the notation of one transcript: of the last pattern that its name matches, in the nearest file. None if none
        does. Raises TranscriptError if a file is not `pattern: template`, or `pattern: [template, …]`.
        """
        found: DeclaredNotation | None = None
        for file, written in self._files.of(path):
            for pattern, value in written.items():
                templates = [value] if isinstance(value, str) else value
                if (
                    not isinstance(templates, list)
                    or not templates
                    or not all(isinstance(each, str) for each in templates)
                ):
                    raise self._files.error(file, f"{pattern!r} has no notation but {value!r}")
                try:
                    notation = DeclaredNotation(templates)
                except ValueError as error:
                    raise self._files.error(file, str(error)) from None
                if fnmatchcase(path.name, str(pattern)) or fnmatchcase(path.stem, str(pattern)):
                    found = notation
        return found
