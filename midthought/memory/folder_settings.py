"""YAML files on how the transcripts of a folder are read: `speakers.yaml`, `notation.yaml`. The nearest file counts first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from midthought.config.yaml_files import read_yaml_file
from midthought.errors import TranscriptError

_MAX_BYTES = 4 * 2**20
_MAX_SHOWN = 3


def misnamed(path: Path, name: str) -> str | None:
    """Returns a sentence if the file is meant to be `name` (`notation.yaml`) and is called otherwise, such as `notation.yml`."""
    is_meant = path.stem.casefold() == Path(name).stem and path.suffix.casefold() in (".yaml", ".yml")
    return f"{path}: it is not used; rename it to {name}" if is_meant and path.name != name else None


class FolderSettings:
    """The files `name` in a transcript's folder and the folders above it, up to `top`. `example` completes error messages."""

    def __init__(self, top: Path, name: str, example: str) -> None:
        self._top = top
        self._name = name
        self._remedy = f"write lines such as {example}"
        self._files: dict[Path, Mapping[str, object] | TranscriptError] = {}

    def of(self, path: Path) -> Iterator[tuple[Path, Mapping[str, object]]]:
        """Yields the files that apply to a transcript with their contents, from `top` down to its own folder.

        Raises TranscriptError if one cannot be read.
        """
        folders = [path.parent, *path.parent.parents]
        reached = folders.index(self._top) + 1 if self._top in folders else 1
        for folder in reversed(folders[:reached]):
            if written := self._read(folder / self._name):
                yield folder / self._name, written

    def unused(self, file: Path, what: str, values: Sequence[str]) -> str:
        """Returns a sentence on values of a file that apply to nothing."""
        shown = ", ".join(map(repr, values[:_MAX_SHOWN])) + (
            f" and {len(values) - _MAX_SHOWN} more" if values[_MAX_SHOWN:] else ""
        )
        return f"{file}: {what}: {shown}; correct or remove"

    def error(self, file: Path, problem: str) -> TranscriptError:
        """Returns the error of a file, with the remedy."""
        return TranscriptError(f"{file}: {problem}; {self._remedy}")

    def _read(self, path: Path) -> Mapping[str, object]:
        if path not in self._files:
            try:
                self._files[path] = self._content(path) if path.is_file() else {}
            except TranscriptError as error:
                self._files[path] = error  # of each transcript; reading a large file again takes long
        if isinstance(found := self._files[path], TranscriptError):
            raise TranscriptError(str(found))
        return found

    def _content(self, path: Path) -> Mapping[str, object]:
        if path.stat().st_size > _MAX_BYTES:
            raise self.error(path, f"larger than {_MAX_BYTES >> 20} MiB")
        try:
            written = read_yaml_file(path)
        except (OSError, yaml.YAMLError) as error:
            raise self.error(path, f"cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(written, Mapping | None):
            raise self.error(path, f"contains a {type(written).__name__}")
        return written or {}
