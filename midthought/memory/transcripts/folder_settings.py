"""YAML files beside transcripts, for their folder and those below it: names of speakers, and how turns start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from midthought.config.yaml_files import SAFE_LOADER, read_yaml_file
from midthought.errors import TranscriptError
from midthought.memory.transcripts.reading import Reading
from midthought.memory.transcripts.text import BOLD, Head, Text, reading_of
from midthought.memory.turns import CLOCK, clock_time

FILE_NAME = "notation.yaml"
EXAMPLE = """'"*.txt": "{speaker} - {time}: {text}"'"""

_PLACE = re.compile(r"\{([^{}]*)\}")
_PATTERNS = {
    "speaker": r"(?P<speaker>\S.{0,99}?)",
    "time": rf"(?P<time>{CLOCK}|\d{{1,7}}(?:\.\d{{1,9}})?)",
    "text": r"(?P<text>.*)",
    "skip": r".{0,200}?",
}
_NAME_SIGNS = " \t:：–—-*·•=|<>~[]_"


class _Texts(SAFE_LOADER):
    """Reads every value as the text that is written, since files may be named `110` or `2024-01-05`, and a speaker `No`."""


_Texts.yaml_implicit_resolvers = {
    first: [each for each in kinds if each[0] in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")]
    for first, kinds in SAFE_LOADER.yaml_implicit_resolvers.items()
}


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
        try:
            written = read_yaml_file(path, _Texts)
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


class NotationError(ValueError):
    """No line of a file has its declared notation."""


class DeclaredNotation:
    """How turns start: templates of a line with `{speaker}`, `{time}`, `{text}` and `{skip}` (any text that is left out).

    Each of several `{skip}` ends at the first place that has the signs after it.
    A line that has none of these forms belongs to the turn before it. Raises ValueError if a template is not usable.
    """

    def __init__(self, templates: Sequence[str]) -> None:
        self._templates = list(templates)
        self._patterns = [re.compile(_pattern(template)) for template in templates]

    def read(self, text: Text) -> Reading:
        """Returns the turns. Raises NotationError, with the first lines, if no line has the notation."""
        heads = {place: head for place, line in enumerate(text.lines) if (head := self._head(line.text))}
        if not heads:
            lines = " / ".join(line.text.replace(BOLD, "")[:60] for line in text.lines[:3])
            raise NotationError(f"no line has the notation {self._templates!r}; its first lines are: {lines}")
        return reading_of(text, heads)

    def _head(self, line: str) -> Head | None:
        """Returns the head in the line as it is written in Markdown, or without the signs of bold words at its start."""
        forms = dict.fromkeys((line.replace(BOLD, "**"), line.replace(BOLD, "")))
        match = next((match for form in forms for each in self._patterns if (match := each.fullmatch(form))), None)
        if not match:
            return None
        found = match.groupdict()
        name = " ".join((found.get("speaker") or "").strip(_NAME_SIGNS).split())
        return Head(name or None, found.get("text") or "", clock_time(found.get("time")))


def _pattern(template: str) -> str:
    parts = _PLACE.split(" ".join(template.split()))
    names = parts[1::2]
    if unknown := [name for name in names if name not in _PATTERNS]:
        raise ValueError(
            f"{template!r} has the unknown place {{{unknown[0]}}}; use {{speaker}}, {{time}}, {{text}}, {{skip}}"
        )
    if not {"speaker", "time", "text"} & set(names):
        raise ValueError(f"{template!r} has none of {{speaker}}, {{time}} and {{text}}")
    if twice := [name for name in names if name != "skip" and names.count(name) > 1]:
        raise ValueError(f"{template!r} has {{{twice[0]}}} twice")
    if "" in parts[2:-1:2]:
        raise ValueError(f"{template!r} has two places without a sign or a blank between them")
    if not any(part.strip() for part in parts[::2]) and "time" not in names and names != ["text"]:
        raise ValueError(
            f"{template!r} has no sign; write the signs that the lines have, or '{{text}}' if nobody is named"
        )
    ends_with_text = len(parts) > 3 and parts[-2] == "text" and not parts[-1] and parts[-3].endswith(" ")
    if ends_with_text:  # also of a line that ends there
        parts = [*parts[:-3], parts[-3][:-1], "", ""]
    written = [_PATTERNS.get(part, "") if number % 2 else _literal(part) for number, part in enumerate(parts)]
    if names.count("skip") > 1:  # else the matches to try grow with a power of the line's length
        for number, part in enumerate(parts[:-1]):
            if part == "skip" and number % 2 and written[number + 1]:
                written[number : number + 2] = f"(?>{written[number]}{written[number + 1]})", ""
    return "".join(written) + (rf"(?:\s+{_PATTERNS['text']})?" if ends_with_text else "")


def _literal(text: str) -> str:
    return re.escape(text).replace(r"\ ", r"\s+")


class Notations(FolderSettings):
    """The notations in the `notation.yaml` of a transcript's folder and of the folders above it, up to `top`."""

    def __init__(self, top: Path) -> None:
        super().__init__(top, FILE_NAME, EXAMPLE)
        self._known: dict[Path, dict[str, DeclaredNotation]] = {}

    def declared(self, path: Path) -> DeclaredNotation | None:
        """Returns the notation of one transcript: of the last pattern that its name matches, in the nearest file. None if none
        does. Raises TranscriptError if a file is not `pattern: template`, or `pattern: [template, …]`.
        """
        found: DeclaredNotation | None = None
        for file, written in self.of(path):
            if file not in self._known:
                self._known[file] = {pattern: self._notation(file, pattern, each) for pattern, each in written.items()}
            for pattern, notation in self._known[file].items():
                if any(name == pattern or fnmatchcase(name, pattern) for name in (path.name, path.stem)):
                    found = notation
        return found

    def _notation(self, file: Path, pattern: str, value: object) -> DeclaredNotation:
        if not isinstance(pattern, str):
            raise self.error(file, f"{pattern!r} is no name of a file")
        templates = [value] if isinstance(value, str) else value
        if not isinstance(templates, list) or not templates or not all(isinstance(each, str) for each in templates):
            raise self.error(file, f"{pattern!r} has no notation but {value!r}")
        try:
            return DeclaredNotation(templates)
        except ValueError as error:
            raise self.error(file, str(error)) from None
