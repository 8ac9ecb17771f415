"""Tiers of annotations: which have the speech, and which have its words or sounds once more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from midthought.memory.formats.reading import Skipped

_LEVEL = re.compile(
    r"(?i)\W*(?:(?P<who>.*?\w)[\s_:/-]+)?(?:words?|phrases?|utterances?|sentences?|transcripts?|transcriptions?|text|ort|ort-mau|"
    r"orthograph\w*|tokens?|segments?|intervals?|speech|ipus?)\W*"
)
"""The name of a tier that says what its annotations are, not who speaks: `words`, `Ann - words`."""
_SOUNDS = re.compile(r"(?i)(?:.*[\s_:/-])?(?:phon\w*|sounds?|syll\w*|mau|kan|kan-mau|pitch|tones?|breaks?)\W*")
_MIN_COMMON = 0.8


class Annotation(NamedTuple):
    """Words with the time at which they start, and their tier or speaker."""

    seconds: float
    speaker: str
    words: str


def spoken_tiers(found: Sequence[Annotation]) -> tuple[list[Annotation], tuple[Skipped, ...]]:
    """Returns the annotations of the tiers with speech, by speaker, and the other tiers."""
    tiers: dict[str, list[Annotation]] = {}
    for each in found:
        tiers.setdefault(each.speaker, []).append(each)
    counts = {name: Counter(_words(own)) for name, own in tiers.items()}
    others = {name for name in tiers if _SOUNDS.fullmatch(name)}
    others = others if len(others) < len(tiers) else set()
    rest = sorted(tiers.keys() - others, key=lambda name: (-len(tiers[name]), name))  # the finest first
    others |= {
        fine for place, fine in enumerate(rest) if any(_are_same(counts[fine], counts[c]) for c in rest[place + 1 :])
    }
    kept = {name: _speaker(name) for name in tiers if name not in others}
    if len(set(kept.values())) < len(kept):
        kept = {name: name for name in kept}
    skipped = tuple(
        Skipped(f"{len(tiers[name])} annotations of the tier {name!r}", "the words or sounds of another tier")
        for name in tiers
        if name in others
    )
    return [each._replace(speaker=kept[each.speaker]) for each in found if each.speaker in kept], skipped


def _are_same(fine: Counter[str], coarse: Counter[str]) -> bool:
    fewer, more = sorted((fine.total(), coarse.total()))
    return 2 * fewer >= more and (fine & coarse).total() >= _MIN_COMMON * fewer


def _words(annotations: Sequence[Annotation]) -> list[str]:
    return [word.strip(".,;:!?\"'()[]").casefold() for each in annotations for word in each.words.split()]


def _speaker(tier: str) -> str:
    """Returns the speaker in the name of a tier; empty if it says only what its annotations are."""
    level = _LEVEL.fullmatch(tier)
    return tier if level is None else level["who"] or ""
