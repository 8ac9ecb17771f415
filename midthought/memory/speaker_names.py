"""`speakers.yaml`: names for the labels of a folder's transcripts, such as `SPEAKER_00`.

Only this file turns a label into a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from midthought.memory.folder_settings import FolderSettings
from midthought.memory.turns import Segment

FILE_NAME = "speakers.yaml"


class SpeakerNames:
    """The names in the `speakers.yaml` of a transcript's folder and of the folders above it, up to `top`."""

    def __init__(self, top: Path) -> None:
        self._files = FolderSettings(top, FILE_NAME, "'SPEAKER_00: Ann Lee'")
        self._unused: dict[Path, dict[tuple[str, ...], str]] = {}
        """Of each file: labels that no transcript has so far, as written, by label, or by (transcript, label)."""

    def of(self, path: Path) -> dict[str, str]:
        """Returns the names by label, in lower case, for one transcript. Names for its file go before names for all.

        Raises TranscriptError if a file is not `label: name`, or `file: {label: name}`.
        """
        names: dict[str, str] = {}
        for file, written in self._files.of(path):
            self._check(file, written)
            for labels in (written, written.get(path.stem), written.get(path.name)):
                if isinstance(labels, Mapping):
                    names |= {str(key).casefold(): name for key, name in labels.items() if isinstance(name, str)}
        return names

    def note(self, path: Path, labels: Collection[str]) -> None:
        """Notes the labels of a transcript, which were read from its file."""
        for file, written in self._files.of(path):
            if file not in self._unused:
                self._unused[file] = dict(_labels_in(written))
            for label in {label.casefold() for label in labels}:
                for key in ((label,), (path.stem, label), (path.name, label)):
                    self._unused[file].pop(key, None)

    def unused(self) -> Iterator[str]:
        """Yields a sentence for each file with labels that no transcript has so far."""
        for file, labels in self._unused.items():
            if labels:
                yield self._files.unused(file, "labels that no transcript has", list(labels.values()))

    def _check(self, file: Path, written: Mapping[str, object]) -> None:
        for key, value in written.items():
            for label, name in value.items() if isinstance(value, Mapping) else [(key, value)]:
                if not isinstance(name, str) or not name.strip():
                    raise self._files.error(file, f"{label!r} has no name but {name!r}")


def _labels_in(written: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in written.items():
        if isinstance(value, Mapping):
            yield from (((str(key), str(label).casefold()), f"{key}: {label}") for label in value)
        else:
            yield (str(key).casefold(),), str(key)


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
