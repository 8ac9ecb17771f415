"""Compares two bare answers by what they are: the same text, equal numbers, equal lists, or equal mathematics.

It knows no data set and no sentence around an answer (`answers`). Verdicts do not depend on which of the two is the truth.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from fractions import Fraction
from typing import NamedTuple

from midthought.data.final_answers import NUMBER, number_in, with_plain_fractions
from midthought.env.answer_matching import equal_expressions

MAX_ENCLOSED = 4
"""So many pairs of delimiters around an answer are removed."""

WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|texttt|mathtt)\s*+\{([^{}]*+)\}")
GROUPED = re.compile(r"(?<=\d)(?:\\[,!:; ]|[~ \u00a0\u2009\u202f])(?=\d{3}(?!\d))")
ESCAPED = re.compile(r"\\([&%$#_{}])")

_REWRITTEN = (
    (re.compile(r"\{,\}|,\\! ?"), ","),
    (GROUPED, ""),
    (WRAPPED, r" \1"),
    (re.compile(r"\\[cdt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right)(?![a-zA-Z])|\*\*(?!\w)|(?<!\w)\*\*"), ""),
    (re.compile(r"(?<!\\)\\[,!:; ]|~|\s++"), " "),
    (re.compile(r" ?\^ ?(?:\\circ|\{ ?\\circ ?\})"), "°"),
    (re.compile(r" ?\bper ?cent\b|\\%"), "%"),
    (re.compile(r"\\([&$#_])"), r"\1"),
    (re.compile(r"(?<=[\^_])\{(\w++)\}"), r"\1"),
    (re.compile(r"^ ?([-+]) "), r"\1"),
)
"""Ways of writing that do not change an answer."""
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁻]++")
_ENCLOSED = re.compile(r"""(["'`*]|\$\$?)(.*)\1|“(.*)”|\\\((.*)\\\)|\\\[(.*)\\\]|\(?([A-J])\)""", re.IGNORECASE)
"""Quotation marks, emphasis, mathematical delimiters; brackets of an option, `(B)` or `B)`."""
_PUNCTUATION = ".,;:?"
_BLANK = re.compile(r" (?=[^\w ])|(?<=[^\w ]) |(?<=\d) (?=[^\W\d_])")

_SCIENTIFIC = re.compile(r"(?:(?<![\w.])(\d++(?:\.\d++)?) ?(?:\\times|\\cdot|[×·*x]) ?|(?<![\w.]))10\^\{?(-?\d{1,3})(?!\d)\}?")
_BEFORE = re.compile(r"(?:(?P<name>.*[\w)\]}|])\s*=\s*)?\+?(?P<currency>[$€£¥]?)\s*(?=[-$€£¥.\d])")
_UNIT = re.compile(r"\s*(%|°[A-Za-z]?)|\s+([^\W\d_]++(?:[/·*^]\{?-?\w++\}?)*+)")

_LIST = re.compile(r"([(\[])([^()\[\]]*,[^()\[\]]*)([)\]])")
_MATHEMATICS = re.compile(
    r"""(?:
    \\(?:begin|end)\{[a-z]++\} | \\[A-Za-z]++ | \\[\\{}|]        # a command
    | (?:\d++(?:\.\d++)? | (?<!\d)\.\d++)(?!\.\d)                # a number, no version
    | [^\W\d_](?![^\W_])                                         # a name: one letter, no word, no x2
    | \^(?!\s*+\{?T\b) | (?<=[A-Za-z}])_                         # a power, no transpose; an index, no base
    | [-+*/=<>≤≥≠±×÷∪∩!|()\[\]{},&\s]
    )++""",
    re.VERBOSE,
)
_COMMAND = re.compile(r"\\[A-Za-z{|]")
_OPERATOR = re.compile(r"[-+*/^=<>≤≥≠±×÷∪∩]")
_NAME = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"(?<![\\\w{])[^\W\d_]{2,}")


class Quantity(NamedTuple):
    """A number, and what is written beside it; empty if nothing is."""

    value: Fraction
    name: str
    """The left side of `x = 5`."""
    currency: str
    unit: str
    """A per cent sign, degrees, or a unit after white space."""

    def agrees(self, other: Quantity) -> bool:
        """Equal numbers. Names, currencies and units count if both state one. `50%` is equal to `50`, `0.5` and `1/2`."""
        if any(own and others and own != others for own, others in zip(self[1:], other[1:], strict=True)):
            return False
        percent = (self.unit == "%") - (other.unit == "%")
        return other.value in (self.value, self.value / Fraction(100) ** percent)


def plain_signs(text: str) -> str:
    """Replaces digits of any script and width with ASCII digits, and typographic minus signs with hyphens."""
    if text.isascii():
        return text
    return "".join(
        "-" if sign in "−﹣－" else str(unicodedata.decimal(sign)) if sign.isdecimal() else sign for sign in text
    )


def same_answer(first: str, second: str) -> bool:
    """Whether two bare answers are equal, in this order: as texts, as numbers, as lists, as mathematics.

    Blocks up to 5 seconds if it compares mathematics; then it raises MissingExtraError if math-verify is not installed.
    """
    first, second = _tidy(first), _tidy(second)
    text = _text(first)
    if text and text == _text(second):
        return True
    numbers = _quantity(first), _quantity(second)
    if numbers[0] or numbers[1]:
        return bool(numbers[0] and numbers[1] and numbers[0].agrees(numbers[1]))
    lists = _LIST.fullmatch(first), _LIST.fullmatch(second)
    if lists[0] and lists[1]:
        (items, others), brackets = (each[2].split(",") for each in lists), [(each[1], each[3]) for each in lists]
        return brackets[0] == brackets[1] and len(items) == len(others) and all(map(same_answer, items, others))
    return _is_formula(first) and _is_formula(second) and equal_expressions(first, second)


def is_mathematics(text: str) -> bool:
    """Whether an answer is compared by math-verify: a formula with a LaTeX command, or with an operator and a name of one letter.

    Numbers are not, nor is anything with a word of two or more letters, a date, a time, a version, or a number with its unit.
    """
    tidy = _tidy(text)
    return _quantity(tidy) is None and _is_formula(tidy)


def ends_in(text: str, truth: str) -> bool:
    """Whether the truth is a number and equal to the last number of a text that has words. A unit counts if the truth has one."""
    meant, text = _quantity(_tidy(truth)), _plain_numbers(_tidy(text))
    numbers = (each for each in NUMBER.finditer(text) if "^" not in text[max(0, each.start() - 2) : each.start()])
    found = next(iter(deque(numbers, maxlen=1)), None)
    value = found and number_in(found)
    if meant is None or found is None or value is None or not _WORD.search(text):
        return False
    unit = _UNIT.match(text, found.end())
    said = unit[0].strip() if unit and (meant.unit or unit[1]) else ""
    return meant.agrees(Quantity(value, "", found["currency"], _text(said)))


def _tidy(text: str) -> str:
    text = _SUPERSCRIPT.sub(lambda found: f"^{{{found[0]}}}", text)
    text = plain_signs(unicodedata.normalize("NFKC", text)).replace("’", "'")
    for pattern, plain in _REWRITTEN:
        text = pattern.sub(plain, text)
    text = text.strip().rstrip(_PUNCTUATION)
    for _ in range(MAX_ENCLOSED):
        if found := _ENCLOSED.fullmatch(text):
            text = next(filter(None, found.groups()[1:]), "").strip().rstrip(_PUNCTUATION)
    return text


def _text(tidy: str) -> str:
    words = (word.rstrip(_PUNCTUATION) for word in tidy.casefold().split())
    return _BLANK.sub("", " ".join(filter(None, words)))


def _plain_numbers(tidy: str) -> str:
    return _SCIENTIFIC.sub(lambda found: f"{found[1] or 1}e{found[2]}", with_plain_fractions(tidy))


def _quantity(tidy: str) -> Quantity | None:
    text = _plain_numbers(tidy)
    before = _BEFORE.match(text)
    found = before and NUMBER.match(text, before.end())
    value = found and number_in(found)
    if not before or not found or value is None:
        return None
    unit = text[found.end() :]
    is_factor = "\\" in tidy and len(unit.strip()) == 1 and unit.strip().isalpha()  # `\frac{1}{2} x`
    if unit and (is_factor or not _UNIT.fullmatch(unit)):
        return None
    return Quantity(value, _text(before["name"] or ""), before["currency"] or found["currency"], _text(unit.strip()))


def _is_formula(tidy: str) -> bool:
    holds = _COMMAND.search(tidy) or (_OPERATOR.search(tidy) and _NAME.search(tidy))
    return bool(holds) and _MATHEMATICS.fullmatch(tidy) is not None
