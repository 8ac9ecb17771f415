"""Reads lines of text: header fields, turns in the style that the file supports, or prose. For every format made of lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate

from midthought.memory.formats.declared_notation import declared_notation
from midthought.memory.formats.header_fields import (
    Header,
    ends_transcript,
    field_of,
    fields_end,
    header_of,
    is_end_mark,
    is_known_key,
    is_rule,
    service_lines,
    spoken_after_title,
    starts_transcript,
)
from midthought.memory.formats.layouts import choose_layout
from midthought.memory.formats.line_candidates import Layout, Row, is_annotation, key_of
from midthought.memory.formats.line_heads import time_head
from midthought.memory.formats.participants import num_fields_before_names, reject_strangers
from midthought.memory.formats.prose_edges import edges, first_field, num_title_rows
from midthought.memory.formats.reading import Reading, Skipped, name_of
from midthought.memory.formats.row_order import in_usual_order, unrolled
from midthought.memory.formats.scripts import ends_sentence, word_count
from midthought.memory.formats.speaker_changes import with_speaker_changes
from midthought.memory.formats.spelled_times import repeats_time, without_spelled_times
from midthought.memory.turns import CLOCK, Segment

MIN_PROSE_WORDS = 50
"""Text without names and timestamps is a transcript only from this length on; shorter, it is probably a note."""
_LINKED_TIME = re.compile(
    rf"(?P<open>(?<=\*\* )\[)?\[\*{{0,2}}\(?(?P<time>{CLOCK})\)?\*{{0,2}}\]\([^()\s]{{1,300}}\)(?(open)\](?=\s*$))",
    re.MULTILINE,
)
"""A time that is an address; after a bold name, in one more bracket, too."""
_TAGGED_TIME = re.compile(rf"<a\b[^<>]{{0,300}}>\s{{0,3}}({CLOCK})\s{{0,3}}</a>")
_NAMED_TIME = re.compile(
    rf"[(\[]\s?(?i:time ?(?:code|stamp)?|tiempo|zeit):?\s({CLOCK})(?:\s?[-–—]\s?{CLOCK})?(?:\s[^\W\d]{{1,9}})?\s?[)\]]"
)
"""A line such as `(Timestamp: 0:00-1:00 minutes)`."""
_UNUSUAL_TIME = re.compile(r"^[(\[]|\dh|#\d")
"""A sign of the next patterns, and of the last one. Most lines have none."""
_HEADING = re.compile(r"#{1,6}\s+\S")
_LETTERED_TIME = re.compile(r"(?<![^(\[])(\d{1,2})h\s?(\d{1,2})m\s?(\d{1,2})s\b")
_HASHED_TIME = re.compile(rf"#({CLOCK})(?:-\d)?#")
"""How transcription programs of qualitative research write times: `#00:01:22-6#`."""
_CLOCK_START = re.compile(r"\d{1,2}(?::\d{2}){1,2}")
_MAX_LABEL_LETTERS = 60
_MAX_BLANK_SHARE = 0.1
_MAX_END_SHARE = 0.25
_MAX_TITLE_WORDS = 15
_MIN_CAPITALS_SHARE = 0.6
_MIN_SENTENCE_WORDS = 5
_MAX_ROWS_BELOW_TITLE = 3
"""Rows between a title such as `Transcript` and the first turn, such as `Download`, and the title."""
_MIN_SPEECH_WORDS = 12
"""Of a sentence before the first speaker; two of them are more than a description."""
_LEADERS = re.compile(r"\.{5}|(?:\. ){5}")
_LINKS = re.compile(r"(?:\[[^\[\]]{1,99}\]\([^()\s]{1,999}\)[\s,;|]{0,3}){1,20}")
"""A line that is nothing but links in Markdown."""


def read_rows(
    rows: Sequence[Row], keep: Callable[[str], str], *, start: Callable[[Row], Row] = lambda row: row
) -> Reading:
    """Returns the turns, or the prose, of a text.

    `keep` turns lines into words without markup, with time marks. `start` rewrites a row so that names and times at its
    start can be recognized.
    """
    if declared := declared_notation():
        return declared.read(rows, keep, start)
    rows, repeated = unrolled([_with_usual_time(row) for row in rows])
    rows = [row._replace(mark="#") if _HEADING.match(row.text) else row for row in in_usual_order(rows)]
    rows, after = _without_end(rows)
    extra = service_lines([row.text for row in rows])
    skipped = [*extra.values(), *(Skipped(keep(row.text.lstrip("# ")), "after the transcript") for row in after)]
    skipped += [Skipped(keep(row.text), "repeats the line before") for row in repeated]
    rows = [row for place, row in enumerate(rows) if place not in extra]
    rows = [part for row in rows for part in _after_title(row)]
    shown = [start(row) for row in rows]
    num_notes = _num_rows_before_transcript(shown)
    num_fields = num_notes + _num_header_rows(shown[num_notes:])
    body = shown[num_fields:]
    layout = choose_layout(body)
    if not layout.heads:
        return _prose(shown[:num_fields], rows[num_fields:], layout, keep, skipped, is_titled=num_notes > 0)
    first = min(layout.heads)
    preface = body[:first]
    header = header_of([row.text for row in shown[:num_fields]], keep)
    reject_strangers(layout, header.fields)
    segments: list[Segment] = []
    is_titled = any(starts_transcript(row.text) for row in preface[-_MAX_ROWS_BELOW_TITLE:])
    if not is_titled and _is_speech(preface, body, has_fields=num_fields > 0):
        words = keep("\n".join(row.text for row in preface if row.mark != "#"))
        segments.append(Segment(None, words))
        layout.doubt(f"{len(words.split())} words before the first speaker have none", 0.3)
        preface = [row for row in preface if row.mark == "#"]
    elif layout.style == "time" and (said := [row for row in preface if row.mark != "#" and _is_sentence(row.text)]):
        segments.append(Segment(None, keep("\n".join(row.text for row in said))))
        preface = [row for row in preface if row not in said]
    if preface:
        more = header_of(_with_blanks(preface), keep)
        header = Header(header.title or more.title, header.fields + more.fields)
    labels = {key_of(head.name) for head in layout.heads.values() if head.name}
    num_kept = num_fields_before_names(header.fields, labels)
    first_turns = [Segment(name_of(key) or None, value) for key, value in header.fields[num_kept:]]
    header = Header(header.title, header.fields[:num_kept])
    is_below_time = first_turns or layout.heads[first].style == "time / name"
    before = [*shown[:num_fields], *preface][-1:] if not (body[first].after_blank or is_below_time) else []
    last = field_of(before[0].text) if before else None
    if (
        last
        and not is_known_key(last[0])
        and not is_annotation(key_of(last[0]))
        and len(last[1].split()) >= _MIN_SENTENCE_WORDS
    ):
        layout.doubt(f"a line before the first turn may be speech: {last[0]!r}", 0.3)
    said_before = [value for key, value in header.fields if not key and _is_sentence(value)]
    if sum(len(value.split()) >= _MIN_SPEECH_WORDS for value in said_before) > 1:
        layout.doubt(f"sentences before the first speaker were read as a header: {said_before[0][:40]!r}", 0.3)
    for key, value in header.fields:
        if (
            not is_known_key(key)
            and not labels.isdisjoint((key_of(key.partition("(")[0]), key_of(key.rpartition(" ")[0])))  # `Host ann`
            and len(value.split()) > _MIN_SENTENCE_WORDS
        ):
            layout.doubt(f"a line before the first turn has the name of a speaker: {key!r}", 0.3)
        if not num_notes and key and not is_known_key(key) and len(value.split()) > 2 and value[-1] in "!?？！":
            layout.doubt(f"a line before the first turn may be speech: {key!r}", 0.3)
    segments += [*first_turns, *_segments(rows[num_fields:], body, layout, keep, skipped)]
    return _judged(
        Reading(
            header.title,
            segments,
            header.fields + layout.fields,
            tuple(skipped),
            layout.confidence,
            tuple(layout.doubts),
        )
    )


def _with_usual_time(row: Row) -> Row:
    """Returns the row with `[00:01:22]` instead of `#00:01:22-6#` and `0:01:22` instead of `0h 1m 22s`."""
    if not _UNUSUAL_TIME.search(row.text):
        return row
    text, bold = (
        _HASHED_TIME.sub(r"[\1]", each) if "#" in each else each for each in (row.text, row.text[: row.num_bold])
    )
    text, bold = (_LETTERED_TIME.sub(r"\1:\2:\3", each, 1) for each in (text, bold))
    if match := _NAMED_TIME.fullmatch(text):
        text, bold = f"[{match[1]}]", ""
    return row._replace(text=text, num_bold=len(bold))


def _judged(reading: Reading) -> Reading:
    """Returns the reading with a turn after every arrow, and a doubt if it is an e-mail or has too many headings for speech."""
    reading = with_speaker_changes(reading)
    if {"from", "to", "subject"} <= {key.casefold() for key, _ in reading.header}:
        reading = reading.doubted("it may be an e-mail, not a transcript: it has a sender and a subject", 0.4)
    num_headings = sum(skip.reason == "heading" for skip in reading.skipped)
    num_words = sum(word_count(segment.text) for segment in reading.segments)
    is_named = any(segment.speaker for segment in reading.segments)
    if num_headings <= (max(4, 0.3 * len(reading.segments)) if is_named else max(1, num_words / 150)):
        return reading
    what = f"{num_headings} headings in {num_words:,} words"
    return reading.doubted(f"it may be a page about something, not a transcript: it has {what}", 0.4)


def rows_of(text: str, mark: Callable[[str], str] = lambda line: "") -> list[Row]:
    """Returns the lines that are not empty."""
    rows: list[Row] = []
    after_blank = True
    raw = _TAGGED_TIME.sub(r"\1", _LINKED_TIME.sub(r"[\g<time>]", text)).split("\n")
    lines, indented = without_spelled_times(raw), _indented(raw)
    for number, line in enumerate(lines):
        if line and not (number and repeats_time(lines[number - 1], line)):
            rows.append(Row(number, line, after_blank or number in indented, mark(line)))
        after_blank = not line
    return rows


def _indented(lines: Sequence[str]) -> set[int]:
    """Returns the lines that start paragraphs by an indent, if blank lines do not separate them."""
    indents = {number: len(line) - len(line.lstrip()) for number, line in enumerate(lines) if line.strip()}
    usual = Counter(indents.values()).most_common(1)[0][0] if indents else 0
    found = {number for number, indent in indents.items() if indent > usual}
    has_paragraphs = len(lines) - len(indents) > _MAX_BLANK_SHARE * len(lines)
    return set() if has_paragraphs or 2 * len(found) > len(indents) else found


def _num_rows_before_transcript(rows: Sequence[Row]) -> int:
    """Returns the number of rows up to a heading such as `Transcript` that most of the text follows, with it; else 0."""
    sizes = [word_count(row.text) for row in rows]
    before = [0, *accumulate(sizes)]
    found = [
        place
        for place, row in enumerate(rows)
        if starts_transcript(row.text) and (row.mark or row.after_blank) and 2 * before[place] < before[-1]
    ]
    start = found[0] if found else -1
    largest = [0, *accumulate(sizes[start:], max)]  # of the rows between the first heading and a later one
    after_contents = [place for place in found[1:] if largest[place - start] < _MAX_TITLE_WORDS]
    return [start, *after_contents][-1] + 1


def _without_end(rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Returns the rows before a heading such as `Links` or `Action items` that at most a quarter of the text follows, and
    the others."""
    places = [
        place
        for place, row in enumerate(rows)
        if (is_end_mark(row.text) and any(each.mark == "#" for each in rows[place:]))
        or (
            ends_transcript(row.text)
            and (row.mark == "#" or (row.after_blank and not row.text.lstrip("([*_")[:1].islower()))
        )
    ]
    counts = Counter(rows[place].text.casefold() for place in places)  # headings in the parts of a meeting recur
    for place in places:
        after = sum(word_count(row.text) for row in rows[place:])
        is_end = place > 0 and counts[rows[place].text.casefold()] == 1
        is_short = after < _MAX_END_SHARE * sum(word_count(row.text) for row in rows)
        if is_end and is_short and not _continues(rows[:place], rows[place:]):
            return rows[:place], rows[place:]
    return rows, ()


def _continues(before: Sequence[Row], after: Sequence[Row]) -> bool:
    """Whether labels that recur before a heading stand before sentences, or times, after it, too."""
    labels = Counter(label for label, _ in map(_labelled, before) if label)
    found = [rest for label, rest in map(_labelled, after) if labels[label] > 1]
    return sum(ends_sentence(rest) or bool(_CLOCK_START.match(rest)) for rest in found) > 1


def _labelled(row: Row) -> tuple[str, str]:
    """Returns what stands before and after the first colon of a row; the first is empty if it is no label."""
    label, _, rest = row.text.partition(":")
    return (
        (label, rest.strip(" *_")) if len(label) < _MAX_LABEL_LETTERS and label.strip(" *_[]()0123456789") else ("", "")
    )


def _after_title(row: Row) -> list[Row]:
    """Returns the row; of `Transcript: So the bell rang`, its title and its words."""
    parts = spoken_after_title(row.text) if row.mark != "code" and not row.num_bold else None
    return [row._replace(text=parts[0]), row._replace(text=parts[1], after_blank=True)] if parts else [row]


def _with_blanks(rows: Sequence[Row]) -> list[str]:
    return [line for row in rows for line in (["", row.text] if row.after_blank else [row.text])]


def _num_header_rows(rows: Sequence[Row]) -> int:
    counts = Counter(_without_number(field[0]) for row in rows if (field := field_of(row.text)))
    lines = _with_blanks([row._replace(text=row.text.rstrip(".")) if row.mark == "#" else row for row in rows[:80]])
    end = fields_end(lines, lambda key: counts[_without_number(key)])
    return sum(map(bool, lines[:end]))


def _without_number(key: str) -> str:
    """Returns a label for comparison, without a number and signs before it."""
    return key.casefold().lstrip("#().[] 0123456789") or key


def _is_speech(preface: Sequence[Row], rows: Sequence[Row], *, has_fields: bool) -> bool:
    """Whether text before the first named turn is so long that it is no description; longer ones follow header fields."""
    paragraphs: list[list[str]] = []
    for row in preface:
        if row.mark != "#":
            paragraphs += [[]] if row.after_blank or not paragraphs else []
            paragraphs[-1].append(row.text)
    spoken = sum(word_count(text) for lines in paragraphs if not _is_list(text := " ".join(lines)))
    share = 0.5 if has_fields else 0.2
    return spoken > 400 or spoken > max(60, share * sum(word_count(row.text) for row in rows))


def _is_sentence(text: str) -> bool:
    return ends_sentence(text) and word_count(text) > _MIN_SENTENCE_WORDS and not field_of(text)


def _is_list(text: str) -> bool:
    """Whether a paragraph is a title, a table of contents or a list of names: most of its words have capitals."""
    words = [word for word in text.split() if word[0].isalpha()]
    num_capitals = sum(word[0].isupper() for word in words)
    return bool(_LEADERS.search(text)) or (len(words) > 2 and num_capitals > _MIN_CAPITALS_SHARE * len(words))


def _segments(
    rows: Sequence[Row], body: Sequence[Row], layout: Layout, keep: Callable[[str], str], skipped: list[Skipped]
) -> list[Segment]:
    segments: list[Segment] = []
    running: list[str] = []
    name: str | None = None
    time: str | None = None
    begins = False
    titles: dict[str, Skipped] = {}

    def end() -> None:
        words = keep("\n".join(running))
        if words or name or time:
            segments.append(Segment(name, words, time, begins_turn=begins))

    follows_heading = False
    for place in range(min(layout.heads), len(rows)):
        row = rows[place]
        follows_heading = (follows_heading or row.mark == "#") and (
            row.mark == "#" or _is_below_heading(body[place].text)
        )
        if head := layout.heads.get(place):
            end()
            name = name_of(keep(head.name)) or None if head.name is not None else None
            time, begins, running = head.time, head.name is not None, [head.rest]
        elif row.mark == "#" or follows_heading or place in layout.notes:
            reason = "heading" if row.mark == "#" else layout.notes.get(place, "field after a heading")
            skipped.append(Skipped(keep(row.text.lstrip("# ")), reason))
        elif place in layout.used and not is_rule(row.text):
            titles.setdefault(row.text, Skipped(keep(row.text), "below a name"))
        elif not is_rule(row.text):
            running.append(row.text)
    end()
    skipped += [title for title in titles.values() if not time_head(title.text)]
    return segments


def _is_below_heading(line: str) -> bool:
    """Whether the line is a short header field, such as `Presenter: Ann Lee`, or has links only."""
    field = field_of(line)
    return bool(_LINKS.fullmatch(line)) or (
        field is not None and is_known_key(field[0]) and len(field[1].split()) < _MAX_TITLE_WORDS
    )


def _prose(
    top: Sequence[Row],
    rows: Sequence[Row],
    layout: Layout,
    keep: Callable[[str], str],
    skipped: list[Skipped],
    *,
    is_titled: bool,
) -> Reading:
    """Paragraphs without a speaker, as in Whisper's `.txt`. `is_titled`: a title says that they are a transcript."""
    header = header_of([row.text for row in top], keep)
    while rows and rows[0].mark == "#":
        more = header_of([rows[0].text.lstrip("# ")], keep)
        header = Header(header.title or more.title, header.fields + more.fields)
        rows = rows[1:]
    if header.title is None and (num := num_title_rows(rows)):
        header = Header(keep(rows[0].text), (*header.fields, *(("", keep(row.text)) for row in rows[:num])))
        rows = rows[num:]
    if header.title is None and len(rows) > 1 and (field := first_field(rows[0].text)):
        header = Header(None, (*header.fields, (keep(field[0]), keep(field[1]))))
        rows = rows[1:]
    skipped += [Skipped(keep(row.text.lstrip("# ")), "heading") for row in rows if row.mark == "#"]
    rows, around = edges(rows, {value for _, value in header.fields})
    skipped += [Skipped(keep(row.text), "around the transcript") for row in around if row.mark != "#"]
    rows = [row for row in rows if row.mark != "#" and not is_rule(row.text)]
    if sum(word_count(row.text) for row in rows) < (_MIN_SPEECH_WORDS if is_titled else MIN_PROSE_WORDS):
        return Reading(None, [])
    is_lines = len(rows) > 1 and not any(row.after_blank for row in rows[1:])  # as Whisper writes them
    parts = [row.text for row in rows] if is_lines else ["\n".join(row.text for row in rows)]
    segments = [Segment(None, keep(part)) for part in parts]
    return _judged(
        Reading(header.title, segments, header.fields, tuple(skipped), layout.confidence, tuple(layout.doubts))
    )
