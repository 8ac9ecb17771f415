"""`notation.yaml`: how turns start in a folder's transcripts of a notation that is no text style, such as
`[{time}] - {speaker}: {text}`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from midthought.memory.folder_settings import FolderSettings
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
        return found

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
