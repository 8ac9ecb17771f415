"""Numbers in words and digits, and what they count. English."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from midthought.memory.rule_questions.english import (
    AUXILIARIES,
    CLAUSE_STARTS,
    FUNCTION_WORDS,
    PREPOSITIONS,
    VERBS,
    word_set,
)

_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = (
    {word: value for value, word in enumerate(_ONES)}
    | {word: 10 * value for value, word in enumerate(_TENS, 2)}
    | {
        f"{tens}-{one}": 10 * value + unit
        for value, tens in enumerate(_TENS, 2)
        for unit, one in enumerate(_ONES[1:10], 1)
    }
)
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_DIGITS = re.compile(r"^\$?\d{1,3}(?:,\d{3})+$|^\$?\d+(?:\.\d+)?%?$")
YEAR = re.compile(r"^(?:19|20)\d\d$")
DETERMINERS = word_set("a an the my our their his her its some any no every each this that these those other another")
_UNITS = word_set("people percent children women men kids euros folks feet")
_KNOWN = frozenset(
    [("24", "hours"), ("7", "days"), ("12", "months"), ("365", "days"), ("60", "minutes"), ("60", "seconds"), ("52", "weeks"),
     ("100", "percent"), ("30", "days"), ("4", "weeks")]
)  # fmt: skip


def number_value(words: Sequence[str]) -> str | None:
    """Returns the digits of a number in words or digits, None if it is not one number: `two hundred and one` is `201`."""
    total, group = 0.0, 0.0
    for place, word in enumerate(words):
        plain = word.strip("$%").replace(",", "")
        if word in _VALUES or re.fullmatch(r"\d+(?:\.\d+)?", plain):
            group += _VALUES[word] if word in _VALUES else float(plain)
        elif word == "hundred" and group < 100:
            group = (group or 1) * 100
        elif word in _SCALES and word != "hundred":
            total, group = total + (group or 1) * _SCALES[word], 0.0
        elif not (word in ("and", "a") and 0 <= place < len(words) - 1):
            return None
    value = total + group
    return f"{value:g}" if value < 1e6 else f"{value:.0f}"


def number_places(tokens: list[str], words: list[str]) -> Iterator[tuple[int, int]]:
    """Yields (first word, word after the last) of each number."""
    start = 0
    while start < len(words):
        end = start
        while end < len(words) and (is_number(words[end], tokens[end]) or (end > start and _joins(words, end))):
            end += 1
            if tokens[end - 1].endswith(","):
                break
        if end > start:
            yield start, end
        start = max(end, start + 1)


def is_number(word: str, token: str) -> bool:
    """Whether a token, and its plain word, is (part of) a number."""
    return word in _VALUES or word in _SCALES or bool(_DIGITS.match(token.rstrip(",")))


def _joins(words: list[str], place: int) -> bool:
    return (
        words[place] == "and" and words[place - 1] in _SCALES and place + 1 < len(words) and words[place + 1] in _VALUES
    )


def counted(tokens: list[str], words: list[str], start: int, end: int) -> tuple[str, str, str, int] | None:
    """Returns (number as said, its digits, question word with what is counted, place after that); None if nothing is."""
    said = " ".join(token.rstrip(",") for token in tokens[start:end])
    value = number_value([token.rstrip(",").lower() for token in tokens[start:end]])
    before = words[start - 1] if start else ""
    is_bound = before == "than" and start > 1 and words[start - 2] in ("more", "less", "fewer")
    after_article = before in ("a", "an", "all") or (start > 1 and words[start - 2] in ("a", "an"))
    if after_article or words[start] in _SCALES:
        return None  # "a record 78 straight years", "a million"
    if value is None or value in ("0", "1") or (before in _NOT_COUNTED and not is_bound) or YEAR.match(said):
        return None
    if words[end : end + 1] in (["or"], ["to"]):
        return None
    if said.startswith("$"):
        return said, value, "how much money", end + (words[end : end + 1] == ["dollars"])
    is_share = said.endswith("%") or words[end : end + 1] == ["percent"]
    unit, after = _unit(tokens, words, end, is_share=is_share)
    if after is None or (value, unit.split()[-1] if unit else "") in _KNOWN:
        return None
    return said, value, f"what percentage {unit}".strip() if is_share else f"how many {unit}", after


_NOT_COUNTED = word_set("or to and between number version than of another")


def _unit(tokens: list[str], words: list[str], end: int, *, is_share: bool) -> tuple[str, int | None]:
    """Returns the counted noun and the place after it; None instead of the place if there is none."""
    if is_share:
        end += words[end : end + 1] == ["percent"]
        if words[end : end + 1] != ["of"]:
            return "", end
        size = 3 if words[end + 1 : end + 2] and words[end + 1] in DETERMINERS else 2
        return " ".join(tokens[end : end + size]).rstrip(","), end + size if end + size <= len(words) else None
    for place in range(end, min(end + 3, len(words))):
        word = words[place]
        if (
            word in PREPOSITIONS | CLAUSE_STARTS | DETERMINERS | {"more", "different", "other"}
            or word in AUXILIARIES
            or not word
        ):
            return "", None
        following = words[place + 1] if place + 1 < len(words) and not tokens[place].endswith(",") else ""
        if following.endswith("s") and following not in VERBS | FUNCTION_WORDS and place < end + 2:
            continue
        is_plural = word.endswith("s") and not word.endswith(("ss", "us", "is", "'s")) and word not in VERBS
        if word in _UNITS or is_plural:
            return " ".join(tokens[end : place + 1]).rstrip(","), place + 1
        if tokens[place].endswith(",") or word in VERBS:
            return "", None
    return "", None
