"""Five checks of what was read. A file that fails one is reported with a number and the remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from midthought.memory.scripts import word_count
from midthought.memory.transcripts.reading import Reading
from midthought.memory.turns import UNKNOWN_SPEAKER, Turn

_MIN_HUGE_WORDS = 200
_MAX_HUGE_SHARE = 0.5
_MAX_LOST_SHARE = 0.01
_MAX_OTHER_WORDS = 100
"""Words of titles, header fields and headings that count as understood."""
_WORD = re.compile(r"[^\W\d_]{2,}")
_DECLARE = "declare in notation.yaml how turns start"


def failed_checks(reading: Reading, turns: Sequence[Turn]) -> tuple[str, ...]:
    """Returns a sentence for each check that fails."""
    checks = _no_speaker(turns), _one_label(turns), _times(turns), _huge_turn(turns), _lost(reading, turns)
    return tuple(sentence for found in checks for sentence in found)


def _named(turns: Sequence[Turn]) -> set[str]:
    return {turn.speaker for turn in turns} - {UNKNOWN_SPEAKER}


def _no_speaker(turns: Sequence[Turn]) -> Iterator[str]:
    if not _named(turns):
        yield f"no speaker is named in {sum(word_count(turn.text) for turn in turns):,} words; if the file names them, {_DECLARE}"


def _one_label(turns: Sequence[Turn]) -> Iterator[str]:
    if len(named := _named(turns)) == 1:
        yield f"{named.pop()!r} is the only speaker in {len(turns):,} turns; if others speak, {_DECLARE}"


def _times(turns: Sequence[Turn]) -> Iterator[str]:
    times = [time for turn in turns for time in (turn.time, *(mark for _, mark in turn.marks)) if time]
    back = [(before, after) for before, after in pairwise(times) if (len(after), after) < (len(before), before)]
    if back:
        yield f"the time goes back {len(back)} times, first from {back[0][0]} to {back[0][1]}; correct the times of the file"


def _huge_turn(turns: Sequence[Turn]) -> Iterator[str]:
    sizes = [word_count(turn.text) for turn in turns]
    place = max(range(len(sizes)), key=sizes.__getitem__)
    if _named(turns) and sizes[place] > max(_MIN_HUGE_WORDS, _MAX_HUGE_SHARE * sum(sizes)):
        speaker = turns[place].speaker
        yield f"turn {place + 1}, of {speaker!r}, has {sizes[place]:,} of {sum(sizes):,} words; if others speak in it, {_DECLARE}"


def _lost(reading: Reading, turns: Sequence[Turn]) -> Iterator[str]:
    wanted = Counter(_words(reading.source))
    others = [
        reading.title or "",
        *(" ".join(field) for field in reading.header),
        *(each.text for each in reading.skipped),
    ]
    found = Counter(_words(" ".join(others))[:_MAX_OTHER_WORDS])
    for turn in turns:
        found.update(_words(turn.text))
    for segment in reading.segments:
        found.update(_words(segment.speaker or ""))
    lost = wanted - found
    num = lost.total()
    if num > _MAX_LOST_SHARE * max(wanted.total(), sum(word_count(turn.text) for turn in turns)):
        shown = " ".join(list(lost)[:5])
        yield f"{num:,} words of the file are in no turn, such as {shown!r}; compare them with 'midthought memory inspect'"


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
