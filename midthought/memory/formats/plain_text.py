"""Plain text: `Name (00:29):` with or without words after it, `[00:29] Name: text`, `Name: text`, `00:00:29 text`, prose."""

from __future__ import annotations

import re
from collections.abc import Sequence

from midthought.memory.formats.reading import BRACKETED_TIME, Reading, looks_like_name, name_of, untimed_headers
from midthought.memory.formats.registry import transcript_format
from midthought.memory.markup import mark_times
from midthought.memory.turns import CLOCK, CLOCK_PATTERN, Segment, clock_time

MIN_PROSE_WORDS = 50
"""Text without names and timestamps is a transcript only from this length on; shorter, it is probably a note."""

_NAME_THEN_TIME = re.compile(
    rf"^(?P<name>[^():\[\]]{{1,80}}?)\s{{0,9}}{BRACKETED_TIME}(?:\s{{0,9}}[:–—-](?:\s|$)|\s*$)(?P<rest>.*)$"
)
_NAME_TIME_WORDS = re.compile(rf"^(?P<name>[^():\[\]]{{1,80}}?)\s{{1,9}}{BRACKETED_TIME}\s(?P<rest>.*)$")
_NAME_BARE_TIME = re.compile(rf"^(?P<name>[^():\[\]]{{1,80}}?)\s{{1,9}}{CLOCK_PATTERN}\s*$")
_TIME_THEN_NAME = re.compile(
    rf"^(?:{BRACKETED_TIME}|{CLOCK_PATTERN.replace('time', 'bare')})\s{{0,9}}[-–—]?\s{{0,9}}"
    rf"(?P<name>[^():\[\]]{{1,80}}?|\[[^:\[\]]{{1,80}}\]):(?:\s(?P<rest>.*)|$)"
)
_TIME_FIRST = re.compile(
    rf"^[(\[]?{CLOCK_PATTERN}(?:\s{{0,9}}(?:-->|[-–—]|to)\s{{0,9}}{CLOCK})?[)\]]?(?:\s{{0,9}}[:–—-])?(?:\s(?P<rest>.*)|$)"
)


@transcript_format(
    "text",
    suffixes=(".txt", ".text"),
    remedy="write each turn as 'Name (00:00:29):', 'Name: text' or '00:00:29 text'",
    shown_by=lambda text, suffix: False,  # the format of a text that shows no other
)
def read_plain_text(text: str) -> Reading:
    """The notation is the one that most lines follow; a line before the first of them may be the title."""
    lines = [line.strip() for line in text.split("\n")]
    headers = _headers(lines)
    first = next((number for number, header in enumerate(headers) if header), len(lines))
    if first == len(lines):
        return _prose(text)
    preamble = [line for line in lines[:first] if line]
    segments: list[Segment] = []
    running: list[str] = []
    head: tuple[str | None, str | None] = (None, None)

    def end() -> None:
        segments.append(Segment(head[0], mark_times("\n".join(running)), head[1], begins_turn=head[0] is not None))

    for line, header in zip(lines[first:], headers[first:], strict=True):
        if header:
            if running:
                end()
            fields = header.groupdict()
            name = name_of(fields["name"]) if fields.get("name") else None
            head = (name, clock_time(fields.get("time") or fields.get("bare")))
            running = [fields.get("rest") or ""]
        else:
            running.append(line)
    end()
    title = preamble[0].lstrip("# ").removeprefix("Title:").strip() if len(preamble) == 1 else None
    return Reading(title or None, segments)


def _headers(lines: Sequence[str]) -> Sequence[re.Match[str] | None]:
    """Returns for each line the match that starts a segment, or None."""
    named: list[re.Match[str] | None] = [
        _NAME_THEN_TIME.match(line) or _time_then_name(line) or _name_and_time(line) for line in lines
    ]
    timed = [_TIME_FIRST.match(line) for line in lines]
    num_named, num_timed = (sum(map(bool, matches)) for matches in (named, timed))
    if num_named and 2 * num_named >= num_timed:
        return named
    untimed = untimed_headers(lines)
    if num_timed > sum(map(bool, untimed)) and (num_timed >= 2 or sum(map(bool, lines)) <= 2):
        return [name or time for name, time in zip(named, timed, strict=True)]
    return untimed


def _time_then_name(line: str) -> re.Match[str] | None:
    match = _TIME_THEN_NAME.match(line)
    return match if match and looks_like_name(match["name"].strip("[]")) else None


def _name_and_time(line: str) -> re.Match[str] | None:
    match = _NAME_TIME_WORDS.match(line) or _NAME_BARE_TIME.match(line)
    return match if match and looks_like_name(match["name"]) else None


def _prose(text: str) -> Reading:
    """Paragraphs without a speaker, as in Whisper's `.txt`."""
    if len(text.split()) < MIN_PROSE_WORDS:
        return Reading(None, [])
    lines = text.split("\n")
    whisper = sum(map(bool, lines)) > 1 and "" not in [line.strip() for line in lines[:-1]]
    parts = lines if whisper else ["\n".join(lines)]
    return Reading(None, [Segment(None, mark_times(part)) for part in parts])
