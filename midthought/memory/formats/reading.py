"""The result of every reader, and the recognition of speaker names. Readers raise ValueError with the reason; they do
not access files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from midthought.memory.turns import CLOCK_PATTERN, Segment

BRACKETED_TIME = rf"[(\[]{CLOCK_PATTERN}[)\]]"
MAX_NAME_LETTERS = 80
_HEAD_LETTERS = 20_000
_HEAD_LINES = 8

_NAME_ONLY = re.compile(r"^(?P<name>[^:\[\]]{1,60}?|\[[^:\[\]]{1,60}\]):(?:\s+(?P<rest>.*))?$", re.DOTALL)
_NAME_WORD = re.compile(
    r"[^\W\d_a-z][\w.'’\-]*,?|\d+|&|(?:de|da|del|der|den|di|du|la|le|van|von|bin|al|and|of|y|e)|\([^()]{1,40}\)"
)
_SENTENCE_END = re.compile(r"(?:[.!?…:—–-][\"'”’)\]]*|[)\]])$")


class Reading(NamedTuple):
    """The episode's title, None if the source has none, and its segments."""

    title: str | None
    segments: list[Segment]


def head_of(text: str) -> str:
    """Returns the first non-empty lines. A file of another suffix must show its format in them: pages about captions contain
    captions, too."""
    return "\n".join(islice((line for line in text[:_HEAD_LETTERS].split("\n") if line.strip()), _HEAD_LINES))


def looks_like_name(text: str) -> bool:
    """True for one to six capitalized words, except particles such as `van`: `Mireille B. Reece, Psy.D`."""
    words = text.split() if len(text) <= MAX_NAME_LETTERS else []
    return 1 <= len(words) <= 6 and words[0][0].isupper() and all(_NAME_WORD.fullmatch(word) for word in words)


def untimed_headers(lines: Sequence[str]) -> list[re.Match[str] | None]:
    """Returns the lines that start with a speaker's name and a colon, as opposed to sentences with a colon.

    A name's words are capitalized, and it either occurs more than once or follows the end of a sentence.
    """
    candidates = [
        match if (match := _NAME_ONLY.match(line)) and looks_like_name(match["name"].strip("[]")) else None
        for line in lines
    ]
    counts = Counter(match["name"] for match in candidates if match)
    for number, match in enumerate(candidates):
        before = lines[number - 1][-20:].rstrip() if number else ""
        follows_sentence = not before or _SENTENCE_END.search(before)
        if match and (
            (counts[match["name"]] < 2 and not follows_sentence) or (number == 0 and match["name"] == "Title")
        ):
            candidates[number] = None
    return candidates


def name_of(written: str) -> str:
    """Returns a speaker's name without surrounding brackets, dashes and colons."""
    return " ".join(written.strip(" \t[]:–—-").split())
