"""Arrows such as `>> Hello.`, with which captions mark that another person speaks, in text that names nobody."""

from __future__ import annotations

import re
from dataclasses import replace

from midthought.memory.formats.reading import Reading
from midthought.memory.turns import Segment

_ARROWS = re.compile(r"""(?:(?<=[.!?…,:;'"’”)\]♪*—–-]\s)|(?<=\n)|^)>>+\s+""")
"""After the end of a sentence or line. Else it is a word of a menu or a program, as in `File >> Open`."""
_ANY_ARROW = re.compile(r"(?:(?<=\s)|^)>>+\s+")
_MIN_ARROWS = 2


def with_speaker_changes(reading: Reading) -> Reading:
    """Returns the reading with a turn after every arrow, and without the arrows, if no speaker has a name."""
    marked = [segment.text for segment in reading.segments if ">>" in segment.text]
    num_arrows, num_any = (sum(len(pattern.findall(text)) for text in marked) for pattern in (_ARROWS, _ANY_ARROW))
    if num_arrows < _MIN_ARROWS or any(segment.speaker for segment in reading.segments):
        return reading
    arrows = _ANY_ARROW if 2 * num_arrows > num_any else _ARROWS  # most follow sentences: a person interrupts another
    return reading._replace(segments=[part for segment in reading.segments for part in _parts(segment, arrows)])


def _parts(segment: Segment, arrows: re.Pattern[str]) -> list[Segment]:
    if ">>" not in segment.text:
        return [segment]
    before, *after = arrows.split(segment.text)
    parts = [Segment(None, text, begins_turn=True) for text in after]
    if before.strip() or not parts:
        return [replace(segment, text=before.strip()), *parts]
    return [replace(parts[0], time=segment.time), *parts[1:]]
