"""Finds transcripts with the same text, such as one episode that Whisper wrote as SRT, VTT and JSON, and repeated passages.

Method: MinHash of five-word shingles, the 256 smallest hashes of each text (Broder, "On the resemblance and containment
of documents", 1997). The standard error at a similarity of 0.8 is 0.025. Written here because it is 20 lines;
`datasketch` would be a further dependency.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest

WordRun = tuple[str, ...]

_RUN_WORDS = 5
_SKETCH_HASHES = 256
_MIN_REPEATED_SHARE = 0.5
"""Of the shorter text's runs."""
_MIN_SHARE = 0.7
"""Minimum share of common shingles. Files of one episode share nearly all, two episodes of one show about one in eighty."""


def duplicate_groups(texts: Sequence[str]) -> list[list[int]]:
    """Returns groups of two or more texts, by index, whose words match the first text of the group. Case and
    punctuation are ignored."""
    first: dict[int, frozenset[int]] = {}  # sketch of each group's first text
    holders: defaultdict[int, list[int]] = defaultdict(list)  # by hash: groups whose first text has it
    groups: dict[int, list[int]] = {}
    for number, text in enumerate(texts):
        sketch = _sketch(text)
        near = sorted({group for value in _rarest(sketch, holders) for group in holders.get(value, ())})
        group = next((group for group in near if _share(sketch, first[group]) >= _MIN_SHARE), number)
        groups.setdefault(group, []).append(number)
        if group == number:
            first[number] = sketch
            for value in sketch:
                holders[value].append(number)
    return [group for group in groups.values() if len(group) > 1]


def _rarest(sketch: frozenset[int], holders: Mapping[int, Sequence[int]]) -> list[int]:
    """Returns so many of the hashes that a text with the required share of common ones has at least one of them; the rarest,
    because an advertisement's are in every episode of a show."""
    num_others = len(sketch) - math.ceil(_MIN_SHARE * len(sketch))
    return nsmallest(num_others + 1, sketch, key=lambda value: len(holders.get(value, ())))


def word_runs(text: str) -> frozenset[WordRun]:
    """Returns the runs of five words, without case and punctuation; of a shorter text, all of it."""
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(*(words[start:] for start in range(_RUN_WORDS)), strict=False)) or frozenset([tuple(words)])


def is_repeated(runs: frozenset[WordRun], others: Iterable[frozenset[WordRun]]) -> bool:
    """Whether one of the others shares half of the shorter text's runs: ads, intros, neighbouring windows."""
    return any(len(runs & other) >= _MIN_REPEATED_SHARE * min(len(runs), len(other)) for other in others)


def _sketch(text: str) -> frozenset[int]:
    return frozenset(nsmallest(_SKETCH_HASHES, (zlib.crc32(" ".join(run).encode()) for run in word_runs(text))))


def _share(one: frozenset[int], other: frozenset[int]) -> float:
    least = nsmallest(_SKETCH_HASHES, one | other)
    return sum(value in one and value in other for value in least) / len(least)
