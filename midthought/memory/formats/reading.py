"""The result of every reader: what was understood, how surely, and what was not. Readers raise ValueError with the reason;
they do not access files."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from midthought.memory.turns import Segment

_HEAD_LETTERS = 20_000
_HEAD_LINES = 8

DOUBTFUL_BELOW = 0.7
"""A reading of less confidence is reported as doubtful."""


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
    confidence: float = 1.0
    """From 0 to 1: the share of the text that the chosen interpretation explains, lowered by each doubt."""
    doubts: tuple[str, ...] = ()
    """What may have been misunderstood, one sentence each."""

    def doubted(self, sentence: str, cost: float) -> Reading:
        """Returns the reading with another doubt, which lowers the confidence by `cost`."""
        return self._replace(doubts=(*self.doubts, sentence), confidence=round(max(0.05, self.confidence - cost), 3))


def head_of(text: str) -> str:
    """Returns the first non-empty lines. A file of another suffix must show its format in them: pages about captions contain
    captions, too."""
    return "\n".join(islice((line for line in text[:_HEAD_LETTERS].split("\n") if line.strip()), _HEAD_LINES))


@lru_cache(maxsize=1 << 14)
def name_of(written: str) -> str:
    """Returns a speaker's name without surrounding brackets, dashes, colons and marks of the writing direction."""
    name = (written if written.isascii() else written.translate(_DIRECTION_MARKS)).strip(_SIGNS).lstrip("[ ")
    name = (name if "[" in name else name.rstrip("] ")).strip(_SIGNS)
    return " ".join((name.strip("_ ") if name.startswith("_") else name).split())


_SIGNS = " \t:：–—-*·•=|>~"
"""Signs around names."""
_DIRECTION_MARKS = dict.fromkeys(
    [0x200B, 0x200E, 0x200F, 0x061C, 0x2060, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
)
