"""Tiers of annotations: which have the speech, and which have its words or sounds once more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from midthought.memory.formats.reading import Skipped

_LEVEL = re.compile(
    r"(?i)\W*(?:(?P<who>.*?\w)[\s_:/-]+)?(?:words?|phrases?|utterances?|sentences?|transcripts?|transcriptions?|text|ort|ort-mau|"
    r"orthograph\w*|default|tokens?|segments?|intervals?|speech|ipus?)\W*"
)
"""The name of a tier that says what its annotations are, not who speaks: `words`, `Ann - words`."""
_SOUNDS = re.compile(r"(?i)(?:.*[\s_:/-])?(?:phon\w*|sounds?|syll\w*|mau|kan|kan-mau|pitch|tones?|breaks?)\W*")
_REMARKS = re.compile(
    r"(?i)(?:.*[\s_:/@-])?(?:comments?|notes?|remarks?|gloss(?:es|ing)?|translations?|metadata|com)\W*"
)
"""The name of a tier of what somebody wrote about the words."""
_PAUSES = frozenset(["_", "#", "%", "sp", "sil", "<sil>", "<p:>", "<eps>", "<p>", "{sl}", "sil:"])
"""Annotations that aligners write where nobody speaks."""
_MIN_COMMON = 0.8
_MAX_TIERS = 40
"""Of more tiers, no words are compared."""
_MAX_NAME_LETTERS = 80
"""A longer name is none of a level."""
_MIN_CODES = 6
_MIN_CODE_TIERS = 3


class Annotation(NamedTuple):
    """Words with the time at which they start, and their tier or speaker."""

    seconds: float
    speaker: str
    words: str


def spoken_tiers(found: Sequence[Annotation]) -> tuple[list[Annotation], tuple[Skipped, ...]]:
    """Returns the annotations of the tiers with speech, by speaker, and the other tiers."""
    tiers: dict[str, list[Annotation]] = {}
    found = [each for each in found if each.words.casefold() not in _PAUSES]
    for each in found:
        tiers.setdefault(each.speaker, []).append(each)
    counts = {name: Counter(_words(own)) for name, own in tiers.items()}
    others = {name for name in tiers if is_remark(name) or (len(name) <= _MAX_NAME_LETTERS and _SOUNDS.fullmatch(name))}
    others = others if len(others) < len(tiers) else set()
    rest = sorted(tiers.keys() - others, key=lambda name: (-len(tiers[name]), name))  # the finest first
    others |= {
        fine
        for place, fine in enumerate(rest if len(rest) <= _MAX_TIERS else ())
        if any(_are_same(counts[fine], counts[coarse]) for coarse in rest[place + 1 :])
    }
    kept = speakers_of_tiers([name for name in tiers if name not in others])
    skipped = tuple(
        Skipped(f"{len(tiers[name])} annotations of the tier {name!r}", "the words or sounds of another tier")
        for name in tiers
        if name in others
    )
    return [each._replace(speaker=kept[each.speaker]) for each in found if each.speaker in kept], skipped


def is_remark(tier: str) -> bool:
    """Whether the name of a tier says that it has remarks, glosses or translations."""
    return len(tier) <= _MAX_NAME_LETTERS and bool(_REMARKS.fullmatch(tier))


def speakers_of_tiers(names: Sequence[str]) -> dict[str, str]:
    """Returns the speakers in the names of tiers, or these names if two tiers have one speaker."""
    speakers = {name: _speaker(name) for name in names}
    return speakers if len(set(speakers.values())) == len(speakers) else {name: name for name in names}


def without_codes(found: Sequence[Annotation], tiers: Sequence[str]) -> tuple[list[Annotation], tuple[Skipped, ...]]:
    """Returns the annotations that are no codes or remarks, and the other tiers. Several tiers with a few values that recur,
    such as directions of gaze, have codes. `tiers`: the tier of each annotation."""
    values: dict[str, list[str]] = {}
    for tier, each in zip(tiers, found, strict=True):
        values.setdefault(tier, []).append(each.words)
    codes = {tier for tier, own in values.items() if _recur(own)}
    codes = codes if len(codes) >= _MIN_CODE_TIERS else set()
    remarks = {tier for tier in values if is_remark(tier)}
    if not codes | remarks or len(codes | remarks) == len(values):
        return list(found), ()
    known = {value for tier in codes for value in values[tier]} | {each.speaker for each in found}
    codes |= remarks | ({tier for tier, own in values.items() if known.issuperset(own)} if codes else set())
    kept = [each for tier, each in zip(tiers, found, strict=True) if tier not in codes]
    return kept, tuple(
        Skipped(f"{len(values[tier])} annotations of the tier {tier!r}", "remarks" if tier in remarks else "codes")
        for tier in sorted(codes)
    )


def _recur(values: Sequence[str]) -> bool:
    """Whether there are a few values that recur, as codes do."""
    return len(values) >= _MIN_CODES and 3 * len(set(values)) <= len(values)


def _are_same(fine: Counter[str], coarse: Counter[str]) -> bool:
    fewer, more = sorted((fine.total(), coarse.total()))
    return 2 * fewer >= more and (fine & coarse).total() >= _MIN_COMMON * fewer


def _words(annotations: Sequence[Annotation]) -> list[str]:
    return [word.strip(".,;:!?\"'()[]").casefold() for each in annotations for word in each.words.split()]


def _speaker(tier: str) -> str:
    """Returns the speaker in the name of a tier; empty if it says only what its annotations are."""
    level = _LEVEL.fullmatch(tier) if len(tier) <= _MAX_NAME_LETTERS else None
    return tier if level is None else level["who"] or ""
