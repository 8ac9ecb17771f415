"""YAML files on how the transcripts of a folder are read: `speakers.yaml`, which names labels such as `SPEAKER_00`, and
`notation.yaml`. The nearest file counts first. Only `speakers.yaml` turns a label into a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from midthought.config.yaml_files import read_yaml_file
from midthought.errors import TranscriptError

_MAX_BYTES = 4 * 2**20


class FolderSettings:
    """The files `name` in a transcript's folder and the folders above it, up to `top`. `example` completes error messages."""

    def __init__(self, top: Path, name: str, example: str) -> None:
        self.name = name
        self._top = top
        self._remedy = f"write lines such as {example}"
        self._files: dict[Path, Mapping[str, object] | TranscriptError] = {}

    def of(self, path: Path) -> Iterator[tuple[Path, Mapping[str, object]]]:
        """Yields the files that apply to a transcript with their contents, from `top` down to its own folder.

        Raises TranscriptError if one cannot be read.
        """
        folders = [path.parent, *path.parent.parents]
        reached = folders.index(self._top) + 1 if self._top in folders else 1
        for folder in reversed(folders[:reached]):
            if written := self._read(folder / self.name):
                yield folder / self.name, written

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


class SpeakerNames(FolderSettings):
    """The names in the `speakers.yaml` of a transcript's folder and of the folders above it, up to `top`."""

    def __init__(self, top: Path) -> None:
        super().__init__(top, "speakers.yaml", "'SPEAKER_00: Ann Lee'")

    def by_label(self, path: Path) -> dict[str, str]:
        """Returns the names by label, in lower case, for one transcript. Names for its file go before names for all.

        Raises TranscriptError if a file is not `label: name`, or `file: {label: name}`.
        """
        names: dict[str, str] = {}
        for file, written in self.of(path):
            for key, value in written.items():
                for label, name in value.items() if isinstance(value, Mapping) else [(key, value)]:
                    if not isinstance(name, str) or not name.strip():
                        raise self.error(file, f"{label!r} has no name but {name!r}")
            for labels in (written, written.get(path.stem), written.get(path.name)):
                if isinstance(labels, Mapping):
                    found = {str(key).casefold(): name for key, name in labels.items() if isinstance(name, str)}
                    names |= {label: " ".join(name.split()) for label, name in found.items()}
        return names
