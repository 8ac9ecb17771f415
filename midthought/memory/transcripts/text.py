"""Turns in lines of text, Markdown, Word, PDF, HTML and captions: the text style with most lines is that of the file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from midthought.memory.transcripts.reading import Reading, Skipped
from midthought.memory.turns import (
    CLOCK,
    UNKNOWN_SPEAKER,
    Segment,
    clock_time,
    is_diarization_label,
    mark_times,
    plain_words,
    unescape,
    without_comments,
    word_count,
)

BOLD = "\ue101"
"""Stands on both sides of bold words at the start of a line."""


class Line(NamedTuple):
    """A line that is not empty."""

    text: str
    starts: bool = True
    """Whether it starts a paragraph or a cue."""
    time: str | None = None
    """Of a cue."""
    is_heading: bool = False


class Text(NamedTuple):
    """Lines of a file, and what they are."""

    lines: list[Line]
    words: Callable[[str], str] = mark_times
    """Removes markup; marks times."""
    title: str | None = None
    header: tuple[tuple[str, str], ...] = ()
    skipped: tuple[Skipped, ...] = ()
    are_cues: bool = False
    """Turns of one speaker in a row are one turn; no line is a header, and no prose is required."""


class Head(NamedTuple):
    """The start of a turn: the name (None: the previous speaker), the words after it in the line, the time."""

    name: str | None
    text: str
    time: str | None


_NAME = r"(?P<name>[^\W_][^\n:：()\[\]<>|*]{0,59}?)"
_TIMES = rf"(?P<time>{CLOCK})(?:\s?(?:-->|[-–—])\s?{CLOCK})?"
_BRACKETS = rf"[(\[]\s?{_TIMES}\s?[)\]]"
_COLON = r"\s?(?:：|:(?=\s|$))"
STYLES = {
    name: re.compile(pattern)
    for name, pattern in {
        "**Name:** text": (
            rf"{BOLD}(?P<name>[^{BOLD}\n]{{1,100}}?)\s?(?:{_BRACKETS}\s?)?(?:[:：]\s?{BOLD}|{BOLD}\s?[:：])\s*(?P<text>.*)"
        ),
        ">> NAME: text": rf">{{2,}}\s?(?:{_NAME}{_COLON})?\s*(?P<text>.*)",
        "[time] Name: text": rf"{_BRACKETS}\s?[-–—]?\s?\[?{_NAME}\]?(?:{_COLON}\s*(?P<text>.*)|(?<![.?!])\s*)",
        "Name (time): text": (
            rf"{_NAME}\s{{0,9}}:?\s{{0,9}}(?:{_BRACKETS}|{_TIMES.replace('time', 'time_at_end')}(?=\s*$))"
            r"\s?(?:[:：]|[-–—](?=\s|$))?\s*(?P<text>.*)"
        ),
        "[Name] text": rf"\[{_NAME}\][:：]?\s*(?P<text>.*)",
        "Name: text": rf"{_NAME}{_COLON}\s*(?P<text>.*)",
    }.items()
}
"""Regular expressions of a line that starts a turn. Of two styles with as many lines, the first is taken."""

BOLD_STYLE, _ARROWS, _WEAKEST = "**Name:** text", ">> NAME: text", "Name: text"
_MAX_NAME_WORDS = 6
_MAX_PARTICLE_LETTERS = 3
_MAX_HEADER_WORDS = 100
_MAX_TITLE_LETTERS = 100
_MIN_PROSE_WORDS = 50
_MIN_PROSE_SHARE = 0.8
_PROSE = re.compile(rf"(?P<time>{_BRACKETS.replace('time', 'at')}\s{{0,9}})?[\"'“‘«„(]?[^\W\d_]")
_FIELD = re.compile(r"([^\W\d_][^:\n]{0,40}):\s+(.+)")
_TITLE_KEYS = ("title", "episode")


def read_lines(text: Text) -> Reading:
    """Returns the turns in the style that most lines have; text without one is speech of nobody, if it is prose.

    Raises ValueError, with the first lines, if the text has no style.
    """
    style, heads = _style_of(text)
    if not heads and not (text.are_cues or _is_prose(text.lines)):
        shown = " / ".join(line.text.replace(BOLD, "")[:60] for line in text.lines[:3])
        raise ValueError(f"no speaker turn found: its lines have none of the text styles: {shown}")
    return reading_of(text, heads)._replace(style=style)


def reading_of(text: Text, heads: Mapping[int, Head]) -> Reading:
    """Returns the turns whose first lines are `heads`, by their places. Lines before them are the header, headings no speech."""
    first = 0 if text.are_cues else min(heads, default=0)
    top, lines = text.lines[:first], text.lines[first:]
    said: list[Segment] = []
    words: list[list[str]] = []
    for place, line in enumerate(lines, first):
        if head := heads.get(place):
            begins = head.name is not None and (not text.are_cues or head.name == UNKNOWN_SPEAKER)
            said.append(Segment(head.name, "", line.time or head.time, begins))
            words.append([head.text])
        elif said and not line.starts and not line.is_heading:
            words[-1].append(line.text)
        elif not line.is_heading:
            said.append(Segment(None, "", line.time))
            words.append([line.text])

    def plain(written: str) -> str:
        return text.words(written.replace(BOLD, ""))

    fields = [_field(plain(line.text), line.is_heading) for line in top]
    headings = [
        plain(line.text).strip("# ")
        for place, line in enumerate(lines, first)
        if line.is_heading and place not in heads
    ]
    titles = [value for (_, value), line in zip(fields, top, strict=True) if line.is_heading] or headings[: not heads]
    titles += [
        value
        for key, value in fields
        if key.lower() in _TITLE_KEYS or (not key and len(fields) == 1 and len(value) <= _MAX_TITLE_LETTERS)
    ]
    return Reading(
        text.title or next(iter(titles), None),
        [replace(each, text=plain(" ".join(parts))) for each, parts in zip(said, words, strict=True)],
        (*text.header, *fields),
        (*text.skipped, *(Skipped(heading, "heading") for heading in headings)),
        "\n".join(plain(line.text) for line in text.lines),
    )


def _field(text: str, is_heading: bool) -> tuple[str, str]:
    found = None if is_heading else _FIELD.fullmatch(text)
    return (found[1], found[2]) if found else ("", text.strip("# ") if is_heading else text)


def _style_of(text: Text) -> tuple[str, dict[int, Head]]:
    """Returns the style that most lines have, and the heads of turns; lines of another style with the name of one of its
    speakers are heads, too."""
    found: dict[str, dict[int, Head]] = {style: {} for style in STYLES}
    lines = text.lines
    for place, line in enumerate(lines):
        for style in STYLES:
            if head := _head(line, style):
                found[style][place] = head
    found[_WEAKEST] = _paragraph_heads(lines, found[_WEAKEST])
    usual = [style for style in STYLES if _is_usual(lines, style, found[style])]
    if not usual:
        return "", {}
    voices = text.are_cues and found[BOLD_STYLE]
    best = BOLD_STYLE if voices else max(usual, key=lambda style: len(found[style]))
    speakers = {head.name for head in found[best].values()} - {UNKNOWN_SPEAKER}
    others = {place: head for style in STYLES for place, head in found[style].items() if head.name in speakers}
    others |= found[_ARROWS] if text.are_cues else {}
    return best, dict(sorted({**others, **found[best]}.items()))


def _head(line: Line, style: str) -> Head | None:
    text = line.text if style == BOLD_STYLE else line.text.replace(BOLD, "")
    match = None if line.is_heading else STYLES[style].fullmatch(text)
    if not match:
        return None
    found = match.groupdict()
    name = " ".join((found["name"] or "").split())
    if name and style != BOLD_STYLE and not _is_name(name):
        return Head(UNKNOWN_SPEAKER, text.lstrip("> "), None) if style == _ARROWS else None
    time = clock_time(found.get("time") or found.get("time_at_end"))
    return Head(name or UNKNOWN_SPEAKER, found["text"] or "", time)


def _is_name(name: str) -> bool:
    """True for a label such as `SPEAKER_00`, and one to six words of which the first and the last start with a capital, or are
    of a script without case."""
    words = [word.lstrip("\"'“‘«„#&") or "-" for word in name.split()]
    are_capital = [not word[0].islower() or (0 < number < len(words) - 1 and len(word) <= _MAX_PARTICLE_LETTERS)
                   for number, word in enumerate(words)]  # fmt: skip
    is_short = word_count(name) <= _MAX_NAME_WORDS and any(map(str.isalpha, name)) and name[-1] not in "?!,;"
    return is_diarization_label(name) or (is_short and all(are_capital))


def _paragraph_heads(lines: Sequence[Line], heads: Mapping[int, Head]) -> dict[int, Head]:
    """Returns the heads of `Name: text`, without fields above the first empty line, whose keys are nowhere else. If most turns
    start paragraphs, a head within one counts only if its name starts another."""
    block = range(next((place for place, line in enumerate(lines) if place and line.starts), len(lines)))
    names = Counter(head.name for head in heads.values())
    keys = [heads[place].name or "" for place in block if place in heads]
    is_title = len(block) == 1 and (keys or [""])[0].lower() in _TITLE_KEYS
    if is_title or (1 < len(keys) == len(block) < len(heads) and all(names[key] == 1 for key in keys)):
        heads = {place: head for place, head in heads.items() if place not in block}
    starting = Counter(head.name for place, head in heads.items() if lines[place].starts)
    if 2 * starting.total() > len(heads):
        heads = {place: head for place, head in heads.items() if head.name in starting}
    return dict(heads)


def _is_usual(lines: Sequence[Line], style: str, heads: Mapping[int, Head]) -> bool:
    """Whether a style can be that of the file: it starts in the first half of the words or after at most 100, and at least
    half of the lines that start with its sign have it."""
    if not heads or (style == _WEAKEST and len(heads) == 1 and 0 not in heads):
        return False
    first = min(heads)
    num_above, num_all = (sum(word_count(line.text) for line in part) for part in (lines[:first], lines))
    if num_above > max(_MAX_HEADER_WORDS, num_all / 2):
        return False
    sign = lines[first].text[0]
    return sign.isalnum() or 2 * len(heads) >= sum(line.text[0] == sign for line in lines)


def _is_prose(lines: Sequence[Line]) -> bool:
    """Whether nearly all words are in paragraphs that start with a letter, a quote or a time, and do not start alike; at least 50
    words if not all have times."""
    sizes = [word_count(line.text) for line in lines]
    found = [_PROSE.match(line.text.replace(BOLD, "")) for line in lines]
    starts = Counter(re.sub(r"\d+", "0", " ".join(line.text.split()[:2])) for line in lines)
    are_timed = all(match and match["time"] for match in found)
    are_alike = len(lines) > 4 and 2 * sum(num for _, num in starts.most_common(4) if num > 1) >= starts.total()
    num_prose = sum(size for size, match in zip(sizes, found, strict=True) if match)
    return are_timed or (num_prose >= max(_MIN_PROSE_WORDS, _MIN_PROSE_SHARE * sum(sizes)) and not are_alike)


# -- lines of text and Markdown ----------------------------------------------------------------------------------------

_HEADING = re.compile(r"#{1,6}\s+\S")
_RULE = re.compile(r"[\s\\]*(?:(?:\*[\s\\]*){3,}|(?:-\s*){3,}|(?:_\s*){3,}|=+\s*|(?:```|~~~).*)$")
_PREFIX = re.compile(r"(?:>\s?(?!>))*\s*(?:[-*+]\s+)?")
_BOLD_START = re.compile(rf"((?:\\?[(\[]{CLOCK}\\?[)\]]\s?[-–—]?\s?)?)(\*\*|__)(?!\s)((?:(?!\2)[^\n]){{1,100}}?)\s?\2")
_BOLD_NAME = re.compile(r"^\*\*[^*\n]{1,100}(?::\*\*|\*\*:)", re.MULTILINE)
_ESCAPED_TIME = re.compile(rf"\\([(\[])({CLOCK})\\([)\]])")
_START_LETTERS = 200


def is_markdown(text: str, suffix: str) -> bool:
    """Whether a text has the suffix of Markdown, or a line that starts with a bold name and a colon."""
    return suffix in (".md", ".markdown") or bool(_BOLD_NAME.search(text))


def plain_text(text: str) -> Text:
    """Returns the lines of plain text."""
    return Text(paragraphs(unescape(text)))


def paragraphs(text: str) -> list[Line]:
    """Returns the lines that are not empty; the first one after an empty one starts a paragraph."""
    pairs = pairwise(["", *map(str.strip, text.split("\n"))])
    return [Line(line, starts=not before) for before, line in pairs if line]


def markdown_text(text: str) -> Text:
    """Returns the lines of Markdown without the signs of quotes, lists and rules; the front matter gives title and header."""
    fields, text = _front_matter(without_comments(text))
    lines: list[Line] = []
    is_open = False
    for written in text.split("\n"):
        line = "" if _RULE.match(written) else written.strip()
        if is_heading := bool(_HEADING.match(line)):
            lines.append(Line(line, is_heading=True))
        elif line := _PREFIX.sub("", line, count=1):
            lines.append(Line(_with_bold_start(line), starts=not is_open))
        is_open = bool(line) and not is_heading
    title = next((value for key, value in fields if key.lower() in _TITLE_KEYS), None)
    return Text(lines, plain_words, title, fields)


def _with_bold_start(line: str) -> str:
    """Returns the line with BOLD on both sides of bold words at its start, or after a time there."""
    start, rest = _ESCAPED_TIME.sub(r"[\2]", line[:_START_LETTERS]), line[_START_LETTERS:]
    return _BOLD_START.sub(rf"\1{BOLD}\3{BOLD}", start, count=1) + rest if _BOLD_START.match(start) else line


def _front_matter(text: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Returns the fields between two lines of `---` at the start, and the text after them."""
    end = text.find("\n---\n", 3) if text.startswith("---\n") else -1
    lines = [line.strip() for line in text[4 : max(end, 0)].split("\n") if line.strip()]
    fields = [(key, value.strip("\"'")) for key, value in (_field(line, is_heading=False) for line in lines)]
    return tuple(fields), text[end + 5 :] if end >= 0 else text
