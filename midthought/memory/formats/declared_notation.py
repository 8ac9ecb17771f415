"""A notation that the user declares in `notation.yaml`: how the line looks with which a turn starts, such as
`[{time}] - {speaker}: {text}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile

from midthought.memory.formats.header_fields import header_of, is_known_key, is_role_key
from midthought.memory.formats.line_candidates import Row
from midthought.memory.formats.reading import Reading, name_of
from midthought.memory.turns import CLOCK, Segment, clock_time

_PLACE = re.compile(r"\{([^{}]*)\}")
_PATTERNS = {
    "speaker": r"(?P<speaker>\S.{0,99}?)",
    "time": rf"(?P<time>{CLOCK}|\d{{1,7}}(?:\.\d{{1,9}})?)",
    "text": r"(?P<text>.*)",
    "skip": r".{0,200}?",
}
_MAX_SHOWN_LINES = 3
_MAX_SHOWN_LETTERS = 60


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
        self.is_used = False
        """Whether a reader has read lines with it."""

    def read(self, rows: Sequence[Row], keep: Callable[[str], str], start: Callable[[Row], Row]) -> Reading:
        """Returns the turns. Raises NotationError, with the first lines, if no line has the notation."""
        self.is_used = True
        places = {place: match for place, row in enumerate(rows) if (match := self._match(row, start))}
        for place in list(takewhile(lambda place: _is_field(places[place]), places)):
            del places[place]
        if not places:
            lines = " / ".join(row.text[:_MAX_SHOWN_LETTERS] for row in rows[:_MAX_SHOWN_LINES])
            raise NotationError(f"no line has the notation {self._templates!r}; its first lines are: {lines}")
        header = header_of([row.text for row in rows[: min(places)]], keep)
        segments = []
        ends = [*list(places)[1:], len(rows)]
        for (place, match), end in zip(places.items(), ends, strict=True):
            found = match.groupdict()
            words = "\n".join([found.get("text") or "", *(row.text for row in rows[place + 1 : end])])
            speaker = name_of(found["speaker"]) if found.get("speaker") else None
            segments.append(
                Segment(speaker, keep(words), clock_time(found.get("time")), begins_turn=speaker is not None)
            )
        return Reading(header.title, segments, header.fields)

    def _match(self, row: Row, start: Callable[[Row], Row]) -> re.Match[str] | None:
        """Returns the match of the line as it is written, or without the emphasis at its start."""
        lines = dict.fromkeys((row.text, start(row).text))
        return next((match for line in lines for pattern in self._patterns if (match := pattern.fullmatch(line))), None)


def _is_field(match: re.Match[str]) -> bool:
    """Whether a line before the first turn is a header field such as `Date: 1 May`."""
    name = match.groupdict().get("speaker") or ""
    return is_known_key(name) and not is_role_key(name)


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


_DECLARED: ContextVar[DeclaredNotation | None] = ContextVar("declared notation", default=None)


def declared_notation() -> DeclaredNotation | None:
    """Returns the notation of the file that is being read; None if the user declared none."""
    return _DECLARED.get()


@contextmanager
def reading_with(notation: DeclaredNotation | None) -> Iterator[None]:
    """While it is open, the readers of lines read turns with `notation`, if there is one."""
    token = _DECLARED.set(notation)
    try:
        yield
    finally:
        _DECLARED.reset(token)
