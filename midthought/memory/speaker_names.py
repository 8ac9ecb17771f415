"""`speakers.yaml`: names for the labels of a folder's transcripts, such as `SPEAKER_00`.

Only this file turns a label into a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from midthought.config.overrides import read_yaml
from midthought.errors import SettingsError, TranscriptError
from midthought.memory.turns import Segment

FILE_NAME = "speakers.yaml"
_MAX_BYTES = 4 * 2**20


class SpeakerNames:
    """The names in the `speakers.yaml` of a transcript's folder and of the folders above it, up to `top`.

    Raises TranscriptError if such a file is not `label: name`, or `file: {label: name}`.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self._files: dict[Path, Mapping[str, object]] = {}

    def of(self, path: Path) -> dict[str, str]:
        """Returns the names by label, in lower case, for one transcript. Names for its file go before names for all."""
        names: dict[str, str] = {}
        folders = [path.parent, *path.parent.parents]
        reached = folders.index(self._top) + 1 if self._top in folders else 1
        for folder in reversed(folders[:reached]):
            written = self._read(folder / FILE_NAME)
            for labels in (written, written.get(path.stem), written.get(path.name)):
                if isinstance(labels, Mapping):
                    names |= {str(key).casefold(): name for key, name in labels.items() if isinstance(name, str)}
        return names

    def _read(self, path: Path) -> Mapping[str, object]:
        if path not in self._files:
            self._files[path] = _read(path) if path.is_file() else {}
        return self._files[path]


def _read(path: Path) -> Mapping[str, object]:
    if path.stat().st_size > _MAX_BYTES:
        raise TranscriptError(f"{path}: larger than {_MAX_BYTES >> 20} MiB; write lines such as 'SPEAKER_00: Ann Lee'")
    try:
        written = read_yaml(path)
    except SettingsError as error:
        raise TranscriptError(f"{error}; write lines such as 'SPEAKER_00: Ann Lee'") from None
    for key, value in written.items():
        inner = value.items() if isinstance(value, Mapping) else [(key, value)]
        for label, name in inner:
            if not isinstance(name, str) or not name.strip():
                raise TranscriptError(
                    f"{path}: {label!r} has no name but {name!r}; write lines such as 'SPEAKER_00: Ann Lee'"
                )
    return written


def with_names(segments: Sequence[Segment], names: Mapping[str, str]) -> list[Segment]:
    """Returns the segments with the names of their labels."""
    if not names:
        return list(segments)
    return [
        replace(segment, speaker=" ".join(names[segment.speaker.casefold()].split()))
        if segment.speaker is not None and segment.speaker.casefold() in names
        else segment
        for segment in segments
    ]
