"""Markdown: turns `**Speaker:** text` and in every style of plain text, bold or not, up to the next speaker."""

from __future__ import annotations

import re

from midthought.memory.formats.header_fields import field_of
from midthought.memory.formats.layouts import Row
from midthought.memory.formats.line_reading import read_rows, rows_of
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format
from midthought.memory.markup import plain_words
from midthought.memory.turns import CLOCK

SPEAKER = re.compile(
    r"^\s{0,3}(\*\*|__)(?P<name>[^*\n]{1,100}?)(?:\s{0,9}[:：]\s{0,9}\1|\1\s{0,9}[:：])(?P<rest>.*)$", re.MULTILINE
)
"""A line that starts a turn in the usual style."""

_HEADING = re.compile(r"^\s{0,3}#{1,6}\s")
_RULE = re.compile(r"^[\s\\]*(?:\|[\s|:\-]{3,}|(?:\*[\s\\]*){3,}|(?:-\s*){3,}|(?:_\s*){3,}|=+\s*|(?:```|~~~).*)$")
_LINE_PREFIX = re.compile(r"^\s*(?:>\s?)*(?:[-*+]\s+)?(?:\|\s?)?")
_TABLE_END = re.compile(r"\s*\|\s*$")
_EMPHASIS = re.compile(
    rf"^(?P<before>(?:[(\[]?{CLOCK}[)\]]?\s{{0,3}}[-–—]?\s{{0,3}})?)(\*{{1,3}}|_{{1,3}})(?P<inner>[^*_\n][^*\n]{{0,99}}?)\2"
)
_ESCAPED_TIME = re.compile(rf"\\([(\[])\s*({CLOCK})\s*\\([)\]])")
_SHOWN = re.compile(r"^\s{0,3}(?:#{1,6}\s|\*\*\S|```)|\]\(\w|\*\*\w[^*\n]{0,80}\*\*|^\s{0,3}\|", re.MULTILINE)
_FENCE = re.compile(r"^\s{0,3}(?:```|~~~)", re.MULTILINE)


def _is_markdown(text: str, suffix: str) -> bool:
    return bool(SPEAKER.search(text) or (suffix in (".md", ".markdown") and _SHOWN.search(text)))


@transcript_format(
    "Markdown",
    suffixes=(".md", ".markdown"),
    remedy="write each turn as '**Speaker:** text'",
    shown_by=_is_markdown,
)
def read_markdown(text: str) -> Reading:
    """The title is in the front matter or the first heading; a turn's paragraphs, lists and quotes are its words."""
    title, fields, text = _front_matter(text)
    lines = [
        _TABLE_END.sub("", _LINE_PREFIX.sub("", line)) if not _RULE.match(line) else "" for line in text.split("\n")
    ]
    rows = rows_of("\n".join(lines), lambda line: "#" if _HEADING.match(line) else "")
    reading = read_rows(rows, lambda words: plain_words(words), start=_start)
    if _FENCE.search(text) and not any(segment.speaker for segment in reading.segments):
        return Reading(None, [])  # a page about something, with code
    return reading._replace(title=title or reading.title or None, header=fields + reading.header)


def _start(row: Row) -> Row:
    """Returns the row without emphasis, escapes and heading signs at its start."""
    text = _ESCAPED_TIME.sub(r"[\2]", row.text[:200]) + row.text[200:]
    if row.mark == "#":
        text = text.lstrip("# ")
    match = _EMPHASIS.match(text)
    if not match:
        return row._replace(text=text)
    start = match["before"] + match["inner"]
    return row._replace(text=start + text[match.end() :], mark=row.mark or "bold", num_bold=len(start))


def _front_matter(text: str) -> tuple[str | None, tuple[tuple[str, str], ...], str]:
    """Returns the title and the fields in the front matter, and the text after it."""
    end = text.find("\n---\n", 3) if text.startswith("---\n") else -1
    if end < 0:
        return None, (), text
    fields: list[tuple[str, str]] = []
    for line in text[4:end].split("\n"):
        field = field_of(line)
        if field:
            fields.append((field[0], _unquoted(field[1])))
        elif fields and line.strip():
            fields[-1] = (fields[-1][0], f"{fields[-1][1]} {line.strip().removeprefix('- ')}".strip())
        elif line.strip():
            fields.append(("", line.strip()))
    title = next((value for key, value in fields if key in ("title", "episode") and value), None)
    return title, tuple(fields), text[end + 5 :]


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
