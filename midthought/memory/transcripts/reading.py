"""What a reader understood of a file, and five checks of it. A file that fails one is reported with a number and the remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

from midthought.errors import MissingExtraError
from midthought.memory.turns import UNKNOWN_SPEAKER, Segment, Turn, word_count

_MIN_HUGE_WORDS = 200
_MAX_HUGE_SHARE = 0.5
_MAX_LOST_SHARE = 0.01
_MAX_OTHER_WORDS = 100
"""Words of titles, header fields and headings that count as understood."""
_WORD = re.compile(r"[^\W\d_]{2,}")
_DECLARE = "declare in notation.yaml how turns start"


class Skipped(NamedTuple):
    """Text that is neither speech nor a header field."""

    text: str
    reason: str


class Reading(NamedTuple):
    """How a reader understands a text."""

    title: str | None
    """None if the source has none."""
    segments: list[Segment]
    header: tuple[tuple[str, str], ...] = ()
    """Fields (key, value) before the first turn; the key is empty for other text there."""
    skipped: tuple[Skipped, ...] = ()
    source: str = ""
    """The words of the file, which are compared with those that were read. Empty: they are not compared."""
    style: str = ""
    """The text style, as in `text.STYLES`."""


@contextmanager
def damage_refused(what: str) -> Iterator[None]:
    """While it is open, errors of a parser, which are of many kinds, are ValueErrors that say it is a damaged file."""
    try:
        yield
    except MissingExtraError as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        if type(error) is ValueError:
            raise
        problem = " ".join(str(error).split())[:100]
        raise ValueError(f"it is a damaged {what} file ({type(error).__name__}: {problem})") from None


def failed_checks(reading: Reading, turns: Sequence[Turn]) -> Iterator[str]:
    """Yields a sentence for each check that fails."""
    sizes = [word_count(turn.text) for turn in turns]
    named = {turn.speaker for turn in turns} - {UNKNOWN_SPEAKER}
    if not named:
        yield f"no speaker is named in {sum(sizes):,} words; if the file names them, {_DECLARE}"
    if len(named) == 1:
        yield f"{next(iter(named))!r} is the only speaker in {len(turns):,} turns; if others speak, {_DECLARE}"
    times = [time for turn in turns for time in (turn.time, *(mark for _, mark in turn.marks)) if time]
    back = [(before, after) for before, after in pairwise(times) if (len(after), after) < (len(before), before)]
    if back:
        yield f"the time goes back {len(back)} times, first from {back[0][0]} to {back[0][1]}; correct the times of the file"
    place = sizes.index(max(sizes))
    if named and sizes[place] > max(_MIN_HUGE_WORDS, _MAX_HUGE_SHARE * sum(sizes)):
        speaker = turns[place].speaker
        yield f"turn {place + 1}, of {speaker!r}, has {sizes[place]:,} of {sum(sizes):,} words; if others speak in it, {_DECLARE}"
    lost, num_words = _lost(reading, turns)
    num_lost = lost.total()
    if num_lost > _MAX_LOST_SHARE * max(num_words, sum(sizes)):
        shown = " ".join(list(lost)[:5])
        yield f"{num_lost:,} words of the file are in no turn, such as {shown!r}; compare them with 'midthought memory inspect'"


def _lost(reading: Reading, turns: Sequence[Turn]) -> tuple[Counter[str], int]:
    """Returns the words of the file that were not read, and the number of all of its words."""
    wanted = Counter(_words(reading.source))
    others = (reading.title or "", *map(" ".join, reading.header), *(each.text for each in reading.skipped))
    found = Counter(_words(" ".join(others))[:_MAX_OTHER_WORDS])
    for text in (*(turn.text for turn in turns), *(segment.speaker or "" for segment in reading.segments)):
        found.update(_words(text))
    return wanted - found, wanted.total()


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
