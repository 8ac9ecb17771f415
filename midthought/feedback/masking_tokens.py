"""A text as tokens that know where they stood: numbers, words, LaTeX commands, signs. Knows no answer.

Signs that look alike are made alike first: digits of any script, accents, typographic minus signs, invisible characters.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

MAX_NUMBER_CHARS = 300
"""A longer run of digits is compared as it is written."""

_MINUS = frozenset("−–‐‑‒﹣－")
_SAME = {
    "’": "'",
    "‘": "'",
    "´": "'",
    "“": '"',
    "”": '"',
    "⁄": "/",
    "∕": "/",
    "÷": "/",
    "⋅": "·",
    "∙": "·",
    "•": "\n",
    "ı": "i",
}
_SUPERSCRIPT = "<super>"
_SUBSCRIPT = "<sub>"

_TOKEN = re.compile(
    r"""
    (?P<number>(?:\d{1,3}(?:(?:,|\{,\}|\\,|,\\!\ {0,2}|\\!)\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,2}(?!\w))?
             |(?<![\w.])\.\d+)
    |(?P<command>\\(?:[A-Za-z]+|[^A-Za-z]))
    |(?P<word>[^\W\d_]+(?:'[^\W\d_]+)*)
    |(?P<newline>\n)
    |(?P<sign>\*{1,3}|_{1,3}|`{1,3}|\${1,2}|<=|>=|!=|[^\w\s])
    """,
    re.VERBOSE | re.DOTALL,
)

_SOFT_SIGNS = frozenset({"**", "***", "__", "___", "`", "``", "```", "$", "$$", "{", "}", "€", "£", "¥", '"', "'"})
_SOFT_COMMANDS = frozenset(
    rf"\{name}"
    for name in str.split(
        "left right big Big bigl bigr Bigl Bigr text textbf textit textrm mathrm mathbf mathit mbox "
        "operatorname displaystyle limits quad qquad boxed fbox underline emph bf it rm tt texttt boldsymbol "
        "( ) [ ] , ; : ! $"
    )
) | {"\\ "}
_NAMES = {
    "π": "\\pi",
    "pi": "\\pi",
    "∞": "\\infty",
    "infinity": "\\infty",
    "√": "\\sqrt",
    "sqrt": "\\sqrt",
    "∪": "\\cup",
    "∈": "\\in",
    "≤": "<=",
    "\\leq": "<=",
    "\\le": "<=",
    "≥": ">=",
    "\\geq": ">=",
    "\\ge": ">=",
    "±": "\\pm",
    "×": "\\times",
    "·": "\\times",
    "*": "\\times",
    "\\cdot": "\\times",
    "°": "\\circ",
    "degree": "\\circ",
    "degrees": "\\circ",
    "\\degree": "\\circ",
    "\\dfrac": "\\frac",
    "\\tfrac": "\\frac",
    "\\cfrac": "\\frac",
    "\\%": "%",
    "θ": "\\theta",
    "\\div": "/",
    "≈": "\\approx",
    "⟨": "(",
    "⟩": ")",
    "\\langle": "(",
    "\\rangle": ")",
}


class Kind(Enum):
    NUMBER = "number"
    WORD = "word"
    COMMAND = "command"
    NEWLINE = "newline"
    SIGN = "sign"


@dataclass(slots=True)
class Token:
    """One token; `start` and `end` are places in the levelled text."""

    kind: Kind
    text: str
    key: str
    """What is compared: case, accents and the ways of writing one sign are level in it."""
    start: int
    end: int
    value: Fraction | None = None
    """Of a number."""
    is_soft: bool = False
    """Marks around words or mathematics that change nothing of what is said."""


class Levelled:
    """A text in which signs that look alike are alike, and where each of its characters stood in the original."""

    def __init__(self, text: str) -> None:
        self._places: list[int] | None = None
        if text.isascii():
            self.text = text
            return
        signs: list[str] = []
        places: list[int] = []
        for place, sign in enumerate(text):
            for plain in sign if sign.isascii() else _plain(sign):
                signs.append(plain)
                places.append(place)
        self.text, self._places = "".join(signs), places

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where a stretch of the levelled text stands in the original."""
        if self._places is None or start >= end:
            return start, end
        return self._places[start], self._places[end - 1] + 1


def _plain(sign: str) -> str:
    if sign in _MINUS:
        return "-"
    if sign in _SAME:
        return _SAME[sign]
    if unicodedata.category(sign) in ("Cf", "Mn"):
        return ""
    if sign.isdecimal():
        return str(unicodedata.decimal(sign))
    decomposition = unicodedata.decomposition(sign)
    if decomposition.startswith(_SUPERSCRIPT):
        return "^" + unicodedata.normalize("NFKD", sign)
    if decomposition.startswith(_SUBSCRIPT):
        return "_" + unicodedata.normalize("NFKD", sign)
    if decomposition.startswith("<fraction>"):
        return " " + "".join(_SAME.get(each, each) for each in unicodedata.normalize("NFKD", sign))
    levelled = "".join(each for each in unicodedata.normalize("NFKD", sign) if unicodedata.category(each) != "Mn")
    return levelled.replace("−", "-") or sign


def tokens_of(text: str) -> list[Token]:
    """The tokens of a levelled text, in their order; blanks are none."""
    return [_token(found) for found in _TOKEN.finditer(text)]


def _token(found: re.Match[str]) -> Token:
    text, start, end = found[0], found.start(), found.end()
    kind = Kind(found.lastgroup)
    if kind is Kind.NUMBER:
        return _number(text, start, end)
    if kind is Kind.WORD:
        key = text if len(text) == 1 else text.casefold().removesuffix("'s")
        return Token(kind, text, _NAMES.get(key, key), start, end)
    key = _NAMES.get(text, text)
    is_soft = key in _SOFT_COMMANDS if kind is Kind.COMMAND else key in _SOFT_SIGNS
    return Token(kind, text, key, start, end, is_soft=is_soft)


def _number(text: str, start: int, end: int) -> Token:
    plain = re.sub(r"[^\d.eE+-]", "", text)
    if len(plain) > MAX_NUMBER_CHARS:
        return Token(Kind.NUMBER, text, plain, start, end)
    value = Fraction(plain)
    return Token(Kind.NUMBER, text, str(value), start, end, value)
