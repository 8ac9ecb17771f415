"""Reads a text for masking: tokens with their places, exact values of numbers, comparison keys of words and expressions.

Does not depend on an answer. Every function is linear in the text.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

MAX_NUMBER_CHARS = 300
"""Longer runs of digits are compared as text."""
MAX_VALUE_CHARS, MAX_DEPTH = 200, 4
"""Limits of the expressions whose value is computed: length, and depth of nested fractions and roots."""

_SAME = (
    dict.fromkeys("−–‐‑‒﹣－", "-") | dict.fromkeys("’‘´", "'") | dict.fromkeys("“”", '"') | dict.fromkeys("⁄∕÷", "/")
)
_SAME |= {"⋅": "·", "∙": "·", "•": "\n", "ı": "i"}
_SHIFTED = {"<super>": "^", "<sub>": "_", "<fraction>": " "}

DIGITS = (
    r"(?:(?:\d{1,3}(?:(?:,|\{,\}|\\,|,\\!\ {0,2}|\\!)\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,2}(?!\w))?"
    r"|(?<![\w.])\.\d+)"
)
_DIGITS = re.compile(DIGITS)
_TOKEN = re.compile(
    rf"(?P<number>{DIGITS})|(?P<command>\\(?:[A-Za-z]+|[^A-Za-z]))|(?P<word>[^\W\d_]+(?:'[^\W\d_]+)*)|(?P<newline>\n)"
    r"|(?P<sign>\*{1,3}|_{1,3}|`{1,3}|\${1,2}|<=|>=|!=|[^\w\s])",
    re.DOTALL,
)
_SOFT = frozenset(str.split("** *** __ ___ ` `` ``` $ $$ { } € £ ¥ \" '")) | {"\\ "}
_SOFT |= frozenset(
    rf"\{name}"
    for name in str.split(
        "left right big Big bigl bigr Bigl Bigr text textbf textit textrm mathrm mathbf mathit mbox operatorname "
        "displaystyle limits quad qquad boxed fbox underline emph bf it rm tt texttt boldsymbol ( ) [ ] , ; : ! $"
    )
)
_SPELLINGS = r"""
\pi π pi; \infty ∞ infinity; \sqrt √ sqrt; \cup ∪; \in ∈; <= ≤ \leq \le; >= ≥ \geq \ge; \pm ±; \theta θ; % \%; / \div;
\times × · * \cdot; \circ ° degree degrees \degree; \frac \dfrac \tfrac \cfrac; ( ⟨ \langle; ) ⟩ \rangle"""
_KEYS = {other: key for key, *others in map(str.split, _SPELLINGS.split(";")) for other in others}
"""Ways to write one sign -> its key."""


class Token(NamedTuple):
    """`start` and `end` are places in the levelled text."""

    kind: str
    """`number`, `command`, `word`, `newline` or `sign`."""
    text: str
    key: str
    """Equal for the different ways to write the same thing."""
    start: int
    end: int

    @property
    def is_soft(self) -> bool:
        """Whether it only marks words or mathematics: braces, emphasis, `\\left`."""
        return self.key in _SOFT


def level(text: str) -> tuple[str, Sequence[int]]:
    """The text with look-alike characters made equal (digits, accents, minus signs), and the place of each of its characters."""
    if text.isascii():
        return text, range(len(text))
    plain = [(each, place) for place, char in enumerate(text) for each in (char if char.isascii() else _plain(char))]
    return "".join(each for each, _ in plain), [place for _, place in plain]


def _plain(char: str) -> str:
    if char in _SAME or unicodedata.category(char) in ("Cf", "Mn"):
        return _SAME.get(char, "")
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    shift = _SHIFTED.get(unicodedata.decomposition(char).partition(" ")[0], "")
    plain = "".join(each for each in unicodedata.normalize("NFKD", char) if unicodedata.category(each) != "Mn")
    return shift + plain.replace("⁄", "/").replace("−", "-") or char


def tokens_of(text: str) -> list[Token]:
    """The tokens of a levelled text, without blanks."""
    return [_token(found) for found in _TOKEN.finditer(text)]


def _token(found: re.Match[str]) -> Token:
    kind, text = str(found.lastgroup), found[0]
    key = text
    if kind == "number":
        value = _value(text)
        key = str(value) if value is not None else re.sub(r"\D", "", text)
    elif kind == "word" and len(text) > 1:
        key = text.casefold().removesuffix("'s")
    return Token(kind, text, _KEYS.get(key, key), *found.span())


def _value(digits: str) -> Fraction | None:
    plain = re.sub(r"[^\d.eE+-]", "", digits)
    return Fraction(plain) if 0 < len(plain) <= MAX_NUMBER_CHARS else None


# -- numbers -------------------------------------------------------------------------------------------------------


def _numbered(words: str, first: int = 1, step: int = 1) -> dict[str, int]:
    return {word: first + step * number for number, word in enumerate(words.split())}


_ONES = _numbered("one two three four five six seven eight nine")
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_UNITS = {"zero": 0, **_ONES, **_numbered(_TEENS, 10)}
_TENS = {**_numbered("twenty thirty forty fifty sixty seventy eighty ninety", 20, 10), "fourty": 40}
_SCALES = {"trillion": 10**12, "billion": 10**9, "million": 10**6, "thousand": 1000}
_MULTIPLES = {"hundred": 100, "dozen": 12, **_SCALES}
_PARTS = _numbered("half third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth", 2)
_PARTS |= {"quarter": 4, "sixteenth": 16, "twentieth": 20, "hundredth": 100, "thousandth": 1000}
_PARTS |= {"halves": 2, **{f"{word}s": number for word, number in _PARTS.items()}}


def _any(words: Sequence[str] | dict[str, int]) -> str:
    return rf"(?:{'|'.join(sorted(words, key=len, reverse=True))})\b"


_BELOW_100 = rf"(?:{_any(_TENS)}(?:[-\s]\s?{_any(_ONES)})?|{_any(_UNITS)})"
_BELOW_1000 = rf"(?:(?:(?:an?|{_BELOW_100})\s+)?hundred\b(?:[-\s]\s?(?:and\s+)?{_BELOW_100})?|{_BELOW_100})"
_JOINT = r"(?:,?\s{1,2}(?:and\s+)?)?"
_WHOLE = "".join(rf"(?:{_JOINT}(?:(?:an?|{_BELOW_1000})[-\s]+)?{scale}\b)?" for scale in _SCALES)
_WHOLE += rf"(?:{_JOINT}{_BELOW_1000}(?!\s+{_any(_MULTIPLES)}))?"
_ARGUMENT = rf"(?:\{{\s*-?\s*{DIGITS}\s*\}}|\d)"
_NUMBER = re.compile(
    rf"""(?P<sign>(?:\b(?:minus|negative)\s+|-\s?)(?:\\?\$|[€£])?\s?)?
    (?:(?:(?P<whole>\d+)\s*)?\\[dtc]?frac\s*(?P<above>{_ARGUMENT})\s*(?P<below>{_ARGUMENT})
    |(?:(?P<count>\d+)\s+)?(?P<over>{DIGITS})\s*(?:/|\\div)\s*(?P<under>{DIGITS})(?!\.?\d|\s*/)
    |(?P<digits>{DIGITS})(?:\s*(?:\\times|\\cdot|[×·*])\s*10\s*\^\s*\{{?\s*(?P<power>\d{{1,2}})(?!\d)\s*\}}?|\s*(?P<scale>{_any(_MULTIPLES)}))?
    |\b(?:an?\s+(?P<one>{_any(_PARTS)})|(?P<half>half\b)
      |(?=(?:an?\s+)?{_any([*_UNITS, *_TENS, *_MULTIPLES])})(?P<words>(?:(?:an?|{_BELOW_100})\s+)?dozen\b|{_WHOLE})
      (?:[-\s]\s?(?P<parts>{_any(_PARTS)})|\s+and\s+(?:a|one)\s+(?P<more>{_any(_PARTS)})
        |\s+point(?P<decimals>(?:\s+{_any(["zero", *_ONES])})+))?))
    (?P<percent>\s*(?:\\?%|percent\b|per\s+cent\b))?""",
    re.VERBOSE | re.IGNORECASE,
)
_MINUEND = re.compile(r"(?:[\w)\]}]|\\pi\s*|\\infty\s*|[\d)\]}]\s+|(?<![A-Za-z])[b-zB-Z]\s+)\Z")


class Number(NamedTuple):
    """A number between two places of a levelled text."""

    start: int
    end: int
    value: Fraction
    form: str
    """`digits`, `words` or `fraction`."""
    num_decimals: int = 0
    is_percent: bool = False

    @property
    def values(self) -> tuple[Fraction, ...]:
        """Possible meanings: 50 % is 50, or 1/2."""
        return (self.value, self.value / 100) if self.is_percent else (self.value,)


def numbers_of(text: str) -> Iterator[Number]:
    """The numbers of a levelled text with their signs. After a fraction, its parts as numbers of their own."""
    place = 0
    while found := _NUMBER.search(text, place):
        sign = found["sign"] or ""
        start, place = found.start() + len(sign), found.end()
        read = _read(found)
        if read is None:  # not one number: the first digits alone, then the rest
            first = _DIGITS.search(text, start, place)
            place = first.end() if first else start + 1
            yield from _digits_in(text, start, place)
            continue
        value, form, num_decimals = read
        if sign and _is_sign(text, found.start(), sign):
            start, value = found.start(), -value
        yield Number(start, place, value, form, num_decimals, bool(found["percent"]))
        for name in ("whole", "above", "below", "count", "over", "under") if form == "fraction" else ():
            yield from _digits_in(text, *found.span(name))


def _digits_in(text: str, start: int, end: int) -> Iterator[Number]:
    for found in _DIGITS.finditer(text, max(start, 0), max(end, 0)):
        if (value := _value(found[0])) is not None:
            yield Number(*found.span(), value, "digits", len(found[0].partition(".")[2]))


def _read(found: re.Match[str]) -> tuple[Fraction, str, int] | None:
    """Value, form and number of decimals; None if the match is not one number."""
    if above := found["above"] or found["over"]:
        top, below = _signed(above), _signed(found["below"] or found["under"])
        whole = _value(found["whole"] or found["count"] or "0")
        if top is None or not below or whole is None or (found["count"] and top >= below):
            return None
        return whole + top / below, "fraction", 0
    if digits := found["digits"]:
        value = _value(digits)
        if value is None:
            return None
        factor = 10 ** int(found["power"] or 0) * _MULTIPLES.get((found["scale"] or "").casefold(), 1)
        return value * factor, "digits", len(digits.partition(".")[2]) if factor == 1 else 0
    if part := found["one"] or found["half"]:
        return Fraction(1, _PARTS[part.casefold()]), "words", 0
    if not found["words"]:
        return None
    total = group = 0
    for word in re.findall("[a-z]+", found["words"].casefold()):
        if word in _SCALES:
            total, group = total + (group or 1) * _SCALES[word], 0
        elif word in _MULTIPLES:
            group = (group or 1) * _MULTIPLES[word]
        else:
            group += _UNITS.get(word, _TENS.get(word, word in ("a", "an")))
    value = Fraction(total + group)
    if parts := found["parts"]:
        return value / _PARTS[parts.casefold()], "words", 0
    if more := found["more"]:
        return value + Fraction(1, _PARTS[more.casefold()]), "words", 0
    decimals = "".join(str({"zero": 0, **_ONES}[word]) for word in (found["decimals"] or "").casefold().split())
    return value + Fraction(int(decimals or 0), 10 ** len(decimals)), "words", len(decimals)


def _signed(argument: str) -> Fraction | None:
    value = _value(argument.replace("-", ""))
    return -value if value is not None and "-" in argument else value


def _is_sign(text: str, at: int, sign: str) -> bool:
    """Whether a minus is a sign: there is nothing to subtract from, and it is not the bullet of a list."""
    before = text[max(0, at - 12) : at]
    if sign[0] != "-":
        return True
    if not before.rpartition("\n")[2].strip():
        return not sign[1:2].isspace()
    return not _MINUEND.search(before) or (before[-1].isspace() and not sign[1:2].isspace())


# -- words and expressions -----------------------------------------------------------------------------------------

Key = tuple[str, int, int]
"""A comparison key, and the start and the end of its token."""

_DROPPED = frozenset({"\n", "(", ")", "[", "]", "\\times", "\\circ", "\\{", "\\}", "\\dots", "\\ldots"})
_COMMAS = frozenset({",", ";", "&", "\\\\", "and", "or"})
_ENVIRONMENT = re.compile(r"[a-zA-Z]*(?:matrix|array|cases|aligned?)\*?")


def word_keys(tokens: Sequence[Token]) -> list[Key]:
    """Words and numbers in lower case, without punctuation."""
    return [(token.key.casefold(), token.start, token.end) for token in tokens if token.kind in ("word", "number")]


def expression_keys(tokens: Sequence[Token]) -> list[Key]:
    """Mathematics without brackets and multiplication signs. `\\frac{a}{b}` is `a / b`; commas separate elements and rows."""
    found: list[Key] = []
    numerators: list[bool] = []  # for every open brace, whether it holds a numerator
    awaits_numerator = False
    skip_to = 0
    for at, token in enumerate(tokens):
        key, start, end = token.key, token.start, token.end
        if at < skip_to:
            continue
        if key == "{":
            numerators.append(awaits_numerator)
            awaits_numerator = False
        elif key == "}":
            if numerators and numerators.pop():
                found.append(("/", start, end))
        elif key == "\\frac":
            awaits_numerator = True
        elif key in ("\\begin", "\\end"):
            is_environment = at + 3 < len(tokens) and _ENVIRONMENT.fullmatch(tokens[at + 2].text)
            skip_to = at + 4 if is_environment and tokens[at + 1].key == "{" else at + 1
        elif key == "^" and any(each.key == "\\circ" for each in tokens[at + 1 : at + 3] if each.key != "{"):
            continue
        elif key in _COMMAS:
            if not found or found[-1][0] != ",":
                found.append((",", start, end))
        elif awaits_numerator:  # of \frac12 the first digit
            first = key[0] if token.kind == "number" and token.text.isdigit() else key
            found += [(first, start, end), ("/", start, end), *([(key[1:], start, end)] if first != key else [])]
            awaits_numerator = False
        elif key not in _DROPPED and (not token.is_soft or key == "$$"):
            found.append((key, start, end))
    return found


_OPERATIONS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
_GROUP = r"(?:\{([^{}]*)\}|(\d))"
_TO_PYTHON = [
    (r"\\(?:left|right)\b|\\[,;! ]|[$\s]", ""),
    (r"\\[dtc]frac", r"\\frac"),
    *[(rf"(?:\\sqrt|√){_GROUP}", r"((\1\2)**0.5)"), (rf"\\frac{_GROUP}{_GROUP}", r"((\1\2)/(\3\4))")] * MAX_DEPTH,
    (r"\\pi|π", "(3.141592653589793)"),
    (r"\\cdot|\\times", "*"),
    (r"\^", "**"),
    (r"\{", "("),
    (r"\}", ")"),
    (r"(?<=[\d)])(?=\()|(?<=\))(?=\d)", "*"),
]
"""Replacements that turn LaTeX into Python."""


def value_of(form: str) -> float | None:
    """The value of an expression of numbers, roots and π in LaTeX; None for anything else."""
    if len(form) > MAX_VALUE_CHARS:
        return None
    for pattern, replacement in _TO_PYTHON:
        form = re.sub(pattern, replacement, form)
    if not re.fullmatch(r"[\d.+\-*/()]+", form):
        return None
    try:
        value = _evaluate(ast.parse(form, mode="eval").body)
    except (ValueError, TypeError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return None
    return value if math.isfinite(value) else None


def _evaluate(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATIONS[type(op)](_evaluate(left), _evaluate(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
    raise ValueError("not arithmetic")
