"""The first words, numbers, tags and signs of lines, and what lines have in common in them."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple

from midthought.memory.formats.line_candidates import Row
from midthought.memory.formats.line_heads import Head
from midthought.memory.formats.scripts import folded
from midthought.memory.turns import CLOCK, clock_time

_MARKS = "".join(sign for sign in map(chr, range(0x300, 0xABEE)) if unicodedata.category(sign).startswith("M"))
"""Signs that combine with the letter before, such as the vowels of Indian scripts."""
_TOKEN = re.compile(
    r"(?P<tag><[^<>\s,=/]{0,40}[,=/][^<>\s]{0,40}>)|(?P<number>\d+(?:[:.,/]\d+)*)|(?P<blank>\s+)|"
    rf"(?P<word>[^\W\d_]\w*(?:(?:[.'’·・@&/_-](?=\w)|[{_MARKS}\u05f3\u05f4]|\"(?=[\u05d0-\u05ea]))\w*)*)|(?P<sign>.)",
    re.DOTALL,
)
_SIGNS = {"tag": "<>", "number": "#", "blank": "\t"}
_MAX_HEAD_LETTERS = 160
_MAX_TOKENS = 40
_MIN_SHARE = 0.9
TIME = re.compile(rf"{CLOCK}|\d{{1,6}}\.\d{{1,6}}")


class Token(NamedTuple):
    """A word, a number (`#`), a blank, a wide blank (a tab), a tag (`<>`) or another sign."""

    sign: str
    start: int
    end: int
    is_word: bool


def tokens_of(row: Row) -> Sequence[Token]:
    """Returns the first tokens of a row."""
    return () if row.mark in ("code", "#") else _tokens(row.text[:_MAX_HEAD_LETTERS])


@lru_cache(maxsize=1 << 12)  # short rows recur
def _tokens(text: str) -> tuple[Token, ...]:
    found = []
    for match in islice(_TOKEN.finditer(folded(text)), _MAX_TOKENS):
        kind, written = match.lastgroup or "", match.group()
        sign = _SIGNS.get(kind, written) if kind != "blank" or written != " " else " "
        found.append(Token(sign, match.start(), match.end(), kind == "word"))
    return tuple(found)


def has_words(text: str) -> bool:
    """Whether the text has a word, not only numbers, tags and signs."""
    return any(match.lastgroup == "word" for match in _TOKEN.finditer(folded(text[:_MAX_HEAD_LETTERS])))


def common_start(texts: Sequence[str]) -> int:
    """Returns the number of tokens with which all texts start alike, up to a bracket that closes after a number; 0 if none."""
    signs = [[token.sign for token in tokens_of(Row(0, text, False))] for text in texts]
    alike = takewhile(lambda each: len(set(each)) == 1, zip(*signs, strict=False))
    start = [each[0] for each in alike]
    closed = [number for number, sign in enumerate(start) if sign in ")]" and "#" in start[:number]]
    return closed[-1] + 1 if closed else 0


def end_and_time(text: str, num_tokens: int) -> tuple[int, str | None]:
    """Returns the end of the first tokens of a text, and the time in them."""
    end = tokens_of(Row(0, text, False))[num_tokens - 1].end
    time = TIME.search(folded(text[:end]))
    return end, clock_time(time.group()) if time else None


def times_of(rows: Sequence[Row]) -> dict[int, Head]:
    """Returns the times of rows that start with the same signs around numbers, such as `0.000 | 2.300 | `, if nearly all do."""
    found: dict[str, dict[int, Head]] = defaultdict(dict)
    for place, row in enumerate(rows):
        if row.text[:1].isalpha():
            continue
        lead = ""
        for token in takewhile(lambda token: not token.is_word, tokens_of(row)):
            lead += token.sign
            if token.sign in " \t" and "#" in lead and (time := TIME.search(folded(row.text[: token.end]))):
                found[lead][place] = Head("time", None, clock_time(time.group()), row.text[token.end :])
    most = max(found.items(), key=lambda item: (len(item[1]), len(item[0])), default=("", {}))[1]
    return most if len(most) >= _MIN_SHARE * len(rows) and len(most) > 2 else {}
