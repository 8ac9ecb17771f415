"""Which texts say the same words: an episode that lies in a folder as SRT, VTT and JSON, as Whisper writes it, is one.

Told by a sketch of what is said: the least 256 hashes of its runs of five words. Of two texts, the least 256 of both their
sketches stand in both as often as their runs of words are shared (Broder, "On the resemblance and containment of documents",
1997); the standard error at a share of 0.8 is 0.025.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Sequence
from heapq import nsmallest

_RUN_WORDS = 5
_SKETCH_HASHES = 256
_MIN_SHARE = 0.7
"""Of the runs of words. Files of one episode share nearly all of theirs, two episodes of one show one in eighty."""


def duplicate_groups(texts: Sequence[str]) -> list[list[int]]:
    """The numbers of those texts that say what the first of their group says, in groups of two and more; case and
    punctuation count for nothing."""
    first: dict[int, frozenset[int]] = {}  # sketch of the first text of each group
    holders: defaultdict[int, list[int]] = defaultdict(list)  # of a hash: groups whose first text has it
    groups: dict[int, list[int]] = {}
    for number, text in enumerate(texts):
        sketch = _sketch(text)
        near = sorted({group for value in sketch for group in holders.get(value, ())})
        group = next((group for group in near if _share(sketch, first[group]) >= _MIN_SHARE), number)
        groups.setdefault(group, []).append(number)
        if group == number:
            first[number] = sketch
            for value in sketch:
                holders[value].append(number)
    return [group for group in groups.values() if len(group) > 1]


def _sketch(text: str) -> frozenset[int]:
    words = re.findall(r"\w+", text.lower())
    runs = {" ".join(words[start : start + _RUN_WORDS]) for start in range(max(1, len(words) - _RUN_WORDS + 1))}
    return frozenset(nsmallest(_SKETCH_HASHES, (zlib.crc32(run.encode()) for run in runs)))


def _share(one: frozenset[int], other: frozenset[int]) -> float:
    least = nsmallest(_SKETCH_HASHES, one | other)
    return sum(value in one and value in other for value in least) / len(least)
