"""Text of a JSON document that has no list of entries, or one entry with all turns: it is read as lines of text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.memory.formats.line_reading import MIN_PROSE_WORDS
from midthought.memory.formats.plain_text import read_plain_text
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.row_order import inner_labels
from midthought.memory.formats.scripts import word_count
from midthought.memory.markup import mark_times
from midthought.memory.turns import Segment

_MIN_LINE_WORDS = 3
_NUMBERED_KEY = re.compile(r"(\D{0,40})(\d{1,4})")
_MIN_NUMBERED = 3


def turns_within(text: str) -> Reading | None:
    """Returns the turns of a text with labels of several speakers; None if it has no turns."""
    if len({key for _, key in inner_labels(text)}) < 2:
        return None
    lines = read_plain_text(text)
    return lines if len({segment.speaker for segment in lines.segments}) > 1 else None


def labelled_lines(text: str) -> Reading | None:
    """Returns the turns of lines; None if they name less than two speakers."""
    lines = read_plain_text(text)
    return lines if len({segment.speaker for segment in lines.segments if segment.speaker}) > 1 else None


def read_lines(entries: Sequence[object]) -> Reading | None:
    """Returns the turns of a list of nothing but lines of several words; None of another list. They are doubtful if few of them
    continue a sentence, as lines of captions do."""
    texts = [" ".join(each.split()) for each in entries if isinstance(each, str)]
    are_long = sum(map(word_count, texts)) >= max(MIN_PROSE_WORDS, _MIN_LINE_WORDS * len(texts))
    if not len(texts) == len(entries) > 1 or not are_long:
        return None
    reading = read_text("\n".join(texts))
    if 2 * sum(text[:1].islower() for text in texts) > len(texts):
        return reading
    return reading.doubted("it is a list of texts, which may be no transcript", 0.4)


def read_text(text: str) -> Reading:
    """Returns the turns of a text, or all of it as one segment without a speaker."""
    lines = read_plain_text(text) if "\n" in text else turns_within(text)
    return lines if lines and lines.segments else Reading(None, [Segment(None, mark_times(text))], confidence=0.8)


def longest_texts(document: Mapping[str, Any]) -> list[str]:
    """Returns the key of the longest text, if it is long, or all keys that differ from it in a number only, in order."""
    texts = {key: len(value.split()) for key, value in document.items() if isinstance(value, str)}
    longest = max(texts, key=texts.__getitem__, default="")
    stem = found[1] if (found := _NUMBERED_KEY.fullmatch(longest)) else None
    matches = [match for match in map(_NUMBERED_KEY.fullmatch, texts) if match and match[1] == stem]
    parts = sorted((int(match[2]), match[0]) for match in matches)
    are_parts = len(parts) >= _MIN_NUMBERED and parts[-1][0] - parts[0][0] + 1 == len(parts)
    keys = [key for _, key in parts] if are_parts else [longest] if longest else []
    return keys if sum(map(texts.__getitem__, keys)) >= MIN_PROSE_WORDS else []
