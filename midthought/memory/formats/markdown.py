"""Markdown: turns `**Speaker:** text` and in every style of plain text, bold or not, up to the next speaker."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from midthought.memory.formats.header_fields import front_matter
from midthought.memory.formats.line_candidates import Row
from midthought.memory.formats.line_reading import read_rows, rows_of
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format
from midthought.memory.formats.speech_signs import with_lost_words, with_writing_doubts
from midthought.memory.formats.spelled_times import without_spelled_times
from midthought.memory.markup import plain_words
from midthought.memory.turns import CLOCK

SPEAKER = re.compile(
    r"^\s{0,3}(?:\[[\d:]{4,8}\]\s{1,3})?(\*\*|__)(?P<name>[^*\n]{1,100}?)(?:\s{0,9}[:：]\s{0,9}\1|\1\s{0,9}[:：])(?P<rest>.*)$",
    re.MULTILINE,
)
"""A line that starts a turn in the usual style."""

_LABEL = re.compile(r"(?:(?<=\s)|^)(?P<bold>\*\*|__)(?P<name>[^*_:\n]{1,60}):[ \t]?(?P=bold)(?=[ \t])", re.MULTILINE)
"""A bold name with a colon, at the start of a line or, after a blank, within it."""
_MIN_LABELS = 3
"""Of a line that is a talk by itself: one of its names recurs."""

_HEADING = re.compile(r"^\s{0,3}#{1,6}\s")
_HEADING_LINE = re.compile(r"^#{1,6} \S", re.MULTILINE)
_RULE = re.compile(
    r"^[\s\\]*(?:\|[\s|:\-]{3,}|(?:\*[\s\\]*){3,}|(?:-\s*){3,}|(?:_\s*){3,}|=+\s*|(?:```|~~~).*|</?(?:details|div|section)\b[^<>]*>\s*)$"
)
_SUMMARY = re.compile(r"^\s*<summary\b[^<>]*>(.{1,200}?)</summary>\s*$")
"""The heading of a part that is shown on a click."""
_LINE_PREFIX = re.compile(r"^\s*(?:>\s?)*(?:[-*+]\s+)?(?:\|\s?)?(?::(?=\*\*))?")
_EMPHASIS = re.compile(
    rf"^(?P<before>(?:[(\[]?{CLOCK}[)\]]?\s{{0,3}}[-–—]?\s{{0,3}})?)(\*{{1,3}}|_{{1,3}})(?P<inner>[^*_\n][^*\n]{{0,99}}?)\2"
)
_EMPHASIZED_TIME = re.compile(rf"(?<=\s)[*_]{{1,3}}({CLOCK})[*_]{{1,3}}")
_CODED_TIME = re.compile(rf"`({CLOCK}(?:\s?[-–—]\s?{CLOCK})?)`")
_ESCAPED_TIME = re.compile(rf"\\([(\[])\s*({CLOCK})\s*\\([)\]])")
_START_SIGN = re.compile(r"[*_`\\]|&nbsp;")
_SHOWN = re.compile(
    r"^\s{0,3}(?:#{1,6}\s|\*\*\S|```)|\]\(\w|\*\*\w[^*\n]{0,80}\*\*|^\s{0,3}\||^[*_]\w[^*_\n]{0,80}[*_]:\s",
    re.MULTILINE,
)
_BOLD_START = re.compile(r"^\s{0,3}\*\*[^*\s][^*\n]{0,80}\*\*", re.MULTILINE)
_MAX_BOLD_STARTS = 3
"""In the first part of a text that is not Markdown."""
_HEAD_LETTERS = 20_000
_DEFINITION = re.compile(r"^:\s{1,4}\S", re.MULTILINE)
_MAX_DEFINITIONS = 2
_MAX_CODE_SHARE = 0.1
_FENCE = re.compile(r"^\s{0,3}(?:```|~~~)", re.MULTILINE)


def _is_markdown(text: str, suffix: str) -> bool:
    is_named = suffix in (".md", ".markdown") or (len(_HEADING_LINE.findall(text)) > 1 and "](http" in text)
    has_bold_starts = len(_BOLD_START.findall(text[:_HEAD_LETTERS])) > _MAX_BOLD_STARTS
    return bool(
        SPEAKER.search(text) or has_bold_starts or (is_named and (text.startswith("---\n") or _SHOWN.search(text)))
    )


@transcript_format(
    "Markdown",
    suffixes=(".md", ".markdown"),
    remedy="write each turn as '**Speaker:** text'",
    shown_by=_is_markdown,
)
def read_markdown(text: str) -> Reading:
    """The title is in the front matter or the first heading; a turn's paragraphs, lists and quotes are its words."""
    title, fields, text = front_matter(text)
    text = _one_turn_per_line(text)
    lines = [
        _without_table_end(_LINE_PREFIX.sub("", _SUMMARY.sub(r"## \1", line) if "<" in line else line))
        if not _RULE.match(line)
        else ""
        for line in text.split("\n")
    ]
    rows = rows_of("\n".join(lines), lambda line: "#" if _HEADING.match(line) else "")
    fenced = _fenced(text.split("\n"))
    rows = [row._replace(mark="code") if row.number in fenced else row for row in rows]
    reading = read_rows(rows, lambda words: plain_words(words), start=_start)
    has_code = bool(fenced)
    is_named = any(segment.speaker for segment in reading.segments)
    if not is_named and _FENCE.search(text) and (not fenced or 10 * len(fenced) > len(rows)):
        return Reading(None, [])  # a page about something, with code
    if has_code and not (is_named and len(fenced) < _MAX_CODE_SHARE * len(rows)):  # as in minutes of programmers
        reading = reading.doubted("it may be a page about something, not a transcript: it has code", 0.4)
    if not is_named and (num := len(_DEFINITION.findall(text))) > _MAX_DEFINITIONS:
        reading = reading.doubted(f"it may be a page about something, not a transcript: it has {num} definitions", 0.4)
    reading = reading._replace(title=title or reading.title or None, header=fields + reading.header)
    return with_lost_words(with_writing_doubts(reading, text), "\n".join(without_spelled_times(text.split("\n"))))


def _one_turn_per_line(text: str) -> str:
    """Returns the text with line ends before the second and later bold names of a line: before those that recur in the text, and
    before all in a line that is a talk by itself."""
    names = Counter(label["name"] for label in _LABEL.finditer(text))
    if not names or max(names.values()) < 2:
        return text

    def split(line: str) -> str:
        labels = list(_LABEL.finditer(line))
        own = Counter(label["name"] for label in labels)
        is_talk = len(labels) >= _MIN_LABELS and max(own.values()) > 1
        starts = [label.start() for label in labels[1:] if is_talk or names[label["name"]] > 1]
        return "\n\n".join(line[start:end] for start, end in pairwise([0, *starts, len(line)]))

    return "\n".join(map(split, text.split("\n")))


def _without_table_end(line: str) -> str:
    """Returns the line without the `|` at its end."""
    text = line.rstrip()
    return text[:-1].rstrip() if text.endswith("|") else line


def _fenced(lines: list[str]) -> set[int]:
    """Returns the numbers of the lines between two lines of ```."""
    fences = [number for number, line in enumerate(lines) if _FENCE.match(line)]
    pairs = list(zip(fences[::2], fences[1::2], strict=False))
    if len(pairs) == 1 and 2 * (pairs[0][1] - pairs[0][0]) > len(lines):
        return set()  # the whole text, as language models write it
    return {number for begin, end in pairs for number in range(begin, end)}


def _start(row: Row) -> Row:
    """Returns the row without emphasis, escapes and heading signs at its start."""
    if row.mark == "code" or not (row.mark or _START_SIGN.search(row.text)):
        return row
    start, rest = row.text[:200].replace("&nbsp;", " "), row.text[200:]
    text = _EMPHASIZED_TIME.sub(r"\1", _ESCAPED_TIME.sub(r"[\2]", _CODED_TIME.sub(r"\1", start))) + rest
    if row.mark == "#":
        text = text.lstrip("# ")
    match = _EMPHASIS.match(text)
    if not match:
        return row._replace(text=text)
    start = match["before"] + match["inner"]
    return row._replace(text=start + text[match.end() :], mark=row.mark or "bold", num_bold=len(start))
