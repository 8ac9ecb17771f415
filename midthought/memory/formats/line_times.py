"""Times of lines without names: which lines start with one, which are the chapters of a list, and the unit of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from midthought.memory.formats.line_candidates import Layout, Row, in_order
from midthought.memory.formats.line_heads import Head, time_head
from midthought.memory.formats.line_tokens import times_of
from midthought.memory.formats.scripts import ends_sentence
from midthought.memory.turns import clock_seconds, clock_time

_MAX_SECONDS_PER_WORD = 40.0
_MAX_CHAPTER_WORDS = 8
_MOST = 0.8


def scale_numbers(layout: Layout, num_words: int) -> None:
    """Takes times that are numbers for milliseconds if they would make a word longer than anybody speaks it."""
    numbers = {place: head for place, head in layout.heads.items() if head.is_number}
    last = max((clock_seconds(head.time) for head in numbers.values() if head.time), default=0)
    if last > _MAX_SECONDS_PER_WORD * num_words:
        layout.heads |= {
            place: head._replace(time=clock_time(clock_seconds(head.time) / 1000))
            for place, head in numbers.items()
            if head.time
        }


def add_times(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds the rows that start with a time and no name."""
    named = bool(layout.style)
    found = {
        place: head
        for place, row in enumerate(rows)
        if row.mark != "code"
        and place not in layout.heads
        and place not in layout.used
        and (head := time_head(row.text))
    }
    if named:
        are_all = len(found) >= _MOST * (len(rows) - len(layout.heads) - len(layout.used)) and not any(
            head.rest.strip() for head in layout.heads.values()
        )
        found = {
            place: head
            for place, head in found.items()
            if are_all or not head.rest.strip() or rows[place].text.lstrip()[:1] in ("(", "[", "<", "（", "［", "【")
        }
        first = min(layout.heads)
        if sum(place < first and is_title(head) for place, head in found.items()) > 1:  # a list of chapters
            found = {place: head for place, head in found.items() if place > first}
        if not any(head.time for head in layout.heads.values()):  # before the first turn: the time of day of a hearing
            found = {place: head for place, head in found.items() if place > min(layout.heads)}
        merged = sorted([*found.items(), *layout.heads.items()])
        if in_order(head for _, head in merged) < 0.8:
            return
    elif not _are_times(found, len(rows)) and not (found := times_of(rows)):
        return
    if found and not named:
        layout.style, layout.confidence = "time", 0.85
        order = in_order(head for _, head in sorted(found.items()))
        if order < 0.98:
            layout.doubt(f"{1 - order:.0%} of the times go back", 0.1 + (1 - order))
    layout.heads.update(found)


def is_title(head: Head) -> bool:
    """Whether a few words that are no sentence follow the time."""
    return 0 < len(head.rest.split()) <= _MAX_CHAPTER_WORDS and not ends_sentence(head.rest)


def _are_times(found: dict[int, Head], num_rows: int) -> bool:
    """Whether rows that start with a time are more than a few lines that happen to."""
    if (len(found) < 2 and num_rows > 2) or (len(found) < 4 and len(found) < 0.2 * num_rows):
        return False
    return len(found) < 4 or in_order(head for _, head in sorted(found.items())) >= 0.7
