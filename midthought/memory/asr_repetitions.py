"""Drops repeated text that a speech recogniser hallucinates: over silence and music, Whisper repeats its last lines.

People repeat themselves, too ("Yeah." "Yeah."), so only long repetitions are dropped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from midthought.memory.turns import Segment

MAX_PERIOD_LINES = 4
"""Maximum number of lines in a repeated block: A B A B A B has a period of 2."""
NUM_LINES = 3
"""Consecutive repetitions of a block that count as a hallucination."""
NUM_SHORT = 16
"""The same for blocks of fewer than MIN_WORDS different words, and shorter phrases: people chant, count and laugh."""
MIN_WORDS = 4

MAX_PERIOD_WORDS = 30
NUM_PHRASES = 5
"""Consecutive repetitions within one line that count as a hallucination, for phrases of MIN_WORDS words or more."""


def without_repetitions(segments: Sequence[Segment]) -> tuple[list[Segment], int]:
    """Returns the segments without hallucinated repetitions (the first occurrence stays), and the number of repetitions
    dropped.

    Only lines of the same speaker count as repetitions: two people who say the same words in turn are talking.
    """
    kept: list[Segment] = []
    num_dropped = 0
    for segment in segments:
        text, num_phrases = _without_phrases(segment.text)
        kept.append(segment if not num_phrases else replace(segment, text=text))
        num_dropped += num_phrases
    keys = _keys(kept)

    def num_needed(place: int, period: int) -> int:
        num_words = len({word for key in keys[place : place + period] for word in key[1:]})
        return NUM_LINES if num_words >= MIN_WORDS else NUM_SHORT

    result: list[Segment] = []
    place = 0
    while place < len(kept):
        period, length = _repetition(keys, place, range(1, MAX_PERIOD_LINES + 1), num_needed)
        result += kept[place : place + period]
        num_dropped += length - period
        place += length
    return result, num_dropped


def _keys(segments: Sequence[Segment]) -> list[tuple[str, ...]]:
    """Comparison keys of the lines: speaker and words, without case and punctuation. A line without words equals no
    other line."""
    keys: list[tuple[str, ...]] = []
    speaker = ""
    for number, segment in enumerate(segments):
        speaker = speaker if segment.speaker is None and not segment.begins_turn else segment.speaker or ""
        words = _folded(segment.text)
        keys.append((speaker, *words) if words else ("", "", str(number)))
    return keys


def _folded(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower()) or text.split()


def _repetition(
    keys: Sequence[Any], place: int, periods: Iterable[int], num_needed: Callable[[int, int], int]
) -> tuple[int, int]:
    """Returns (items of the repeated block, items of all its repetitions) from `place` on; (1, 1) if nothing repeats.

    `num_needed(place, period)` is the number of repetitions that count.
    """
    for period in periods:
        least = period * num_needed(place, period)
        if place + least > len(keys) or keys[place + least - 1] != keys[place + least - 1 - period]:
            continue
        length = period
        while place + length < len(keys) and keys[place + length] == keys[place + length - period]:
            length += 1
        if length >= least:
            return period, length
    return 1, 1


def _without_phrases(text: str) -> tuple[str, int]:
    """Returns the line with every repeated phrase once, and the number of repetitions dropped."""
    words = text.split()
    if len(words) < NUM_SHORT:
        return text, 0
    keys = {word: " ".join(_folded(word)) for word in set(words)}
    folded = [keys[word] for word in words]
    places: dict[str, list[int]] = defaultdict(list)
    later: list[tuple[int, ...]] = [()] * len(words)  # the next positions of the same word
    for place in range(len(words) - 1, -1, -1):
        seen = places[folded[place]]
        later[place] = tuple(seen[:-4:-1])
        seen.append(place)

    def num_needed(place: int, period: int) -> int:
        return NUM_PHRASES if period >= MIN_WORDS else NUM_SHORT

    result: list[str] = []
    num_dropped = place = 0
    while place < len(words):
        periods = [other - place for other in later[place] if other - place <= MAX_PERIOD_WORDS]
        period, length = _repetition(folded, place, periods, num_needed)
        result += words[place : place + period]
        num_dropped += length // period - 1
        place += length - length % period
    return (" ".join(result), num_dropped) if num_dropped else (text, 0)
