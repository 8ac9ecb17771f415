"""Numbers as people write them: `42`, `42.0`, `1,000`, `\\frac{1}{2}`, `1/2`, `50%`, `2 million`, `forty-two`, `minus three`.

Reads them from tokens, exactly. Knows neither an answer nor what stands around a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from midthought.feedback.masking_tokens import Kind, Token

_UNITS = {
    word: number
    for number, word in enumerate(
        str.split(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
            "sixteen seventeen eighteen nineteen"
        )
    )
}
_TENS = {
    word: 10 * number
    for number, word in enumerate(str.split("twenty thirty forty fifty sixty seventy eighty ninety"), 2)
} | {"fourty": 40}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {
    word: number
    for number, words in {
        2: "half halves",
        3: "third thirds",
        4: "quarter quarters fourth fourths",
        5: "fifth fifths",
        6: "sixth sixths",
        7: "seventh sevenths",
        8: "eighth eighths",
        9: "ninth ninths",
        10: "tenth tenths",
        11: "eleventh elevenths",
        12: "twelfth twelfths",
        16: "sixteenth sixteenths",
        20: "twentieth twentieths",
        100: "hundredth hundredths",
        1000: "thousandth thousandths",
    }.items()
    for word in words.split()
}
_AFTER_DIGITS = {"hundred": 100, "dozen": 12, **_SCALES}
_MAX_POWER = 60
_MAX_WORDS = 40
"""Of one number: "nine hundred and ninety-nine trillion, …" has fewer."""
_NUMBER_WORDS = frozenset({*_UNITS, *_TENS, *_SCALES, "hundred", "dozen", "half"})


@dataclass(frozen=True, slots=True)
class Literal:
    """One number in a text; `first` and `last` are its tokens, both included."""

    first: int
    last: int
    value: Fraction
    form: str
    """`digits`, `words`, `fraction` or `mixed`."""
    num_decimals: int = 0
    is_percent: bool = False

    @property
    def values(self) -> tuple[Fraction, ...]:
        """What it may mean: a per cent is the number before the sign, too."""
        return (self.value, self.value / 100) if self.is_percent else (self.value,)


def literals(tokens: Sequence[Token]) -> Iterator[Literal]:
    """The numbers of a text, in their order, each with its sign. The parts of a fraction follow it as numbers of their own."""
    at = 0
    while at < len(tokens):
        found = _core(tokens, at)
        if found is None:
            at += 1
            continue
        last = found.last
        found = _with_sign(tokens, _with_percent(tokens, found))
        yield found
        if found.form in ("fraction", "mixed"):
            for part in range(at, last + 1):
                if tokens[part].value is not None:
                    yield _of_digits(tokens, part)
        at = max(found.last, last) + 1


def _core(tokens: Sequence[Token], at: int) -> Literal | None:
    token = tokens[at]
    if token.value is not None:
        return _from_digits(tokens, at)
    if token.key == "\\frac":
        return _latex_fraction(tokens, at)
    if token.kind is Kind.WORD:
        return _from_words(tokens, at)
    return None


def _of_digits(tokens: Sequence[Token], at: int) -> Literal:
    value = tokens[at].value
    assert value is not None
    return Literal(at, at, value, "digits", len(tokens[at].text.partition(".")[2]))


def _from_digits(tokens: Sequence[Token], at: int) -> Literal:
    found = _of_digits(tokens, at)
    after = _at(tokens, at + 1)
    if after is None:
        return found
    if after.key == "/" and (below := _at(tokens, at + 2)) is not None and below.value:
        third = _at(tokens, at + 3)
        if third is None or third.key != "/":
            return Literal(at, at + 2, found.value / below.value, "fraction")
    if after.key == "\\frac" and found.value.denominator == 1:
        part = _latex_fraction(tokens, at + 1)
        if part is not None:
            return Literal(at, part.last, found.value + part.value, "mixed")
    if after.value is not None and found.value.denominator == 1:
        part = _from_digits(tokens, at + 1) if _at(tokens, at + 2) and tokens[at + 2].key == "/" else None
        if part is not None and part.form == "fraction" and part.value < 1:
            return Literal(at, part.last, found.value + part.value, "mixed")
    if after.key == "\\times" and _keys(tokens, at + 2, 2) == ["10", "^"]:
        return _with_power_of_ten(tokens, found)
    if after.key in _AFTER_DIGITS:
        return Literal(at, at + 1, found.value * _AFTER_DIGITS[after.key], "digits")
    return found


def _with_power_of_ten(tokens: Sequence[Token], found: Literal) -> Literal:
    at = found.first + 4
    opened = _at(tokens, at) is not None and tokens[at].key == "{"
    at += opened
    power = _at(tokens, at)
    if power is None or power.value is None or power.value.denominator != 1 or power.value > _MAX_POWER:
        return found
    return Literal(found.first, at + opened, found.value * 10 ** int(power.value), "digits")


def _latex_fraction(tokens: Sequence[Token], at: int) -> Literal | None:
    """`\\frac{1}{2}`, `\\frac12`, `\\frac{27}4`; None where a part is no number."""
    whole = _at(tokens, at + 1)
    if whole is not None and whole.text.isdigit() and len(whole.text) == 2 and _key(tokens, at + 2) != "{":
        above, below = int(whole.text[0]), int(whole.text[1])
        return Literal(at, at + 1, Fraction(above, below), "fraction") if below else None
    numerator = _argument(tokens, at + 1)
    if numerator is None:
        return None
    denominator = _argument(tokens, numerator.last + 1)
    if denominator is None or not denominator.value:
        return None
    return Literal(at, denominator.last, numerator.value / denominator.value, "fraction")


def _argument(tokens: Sequence[Token], at: int) -> Literal | None:
    opened = _key(tokens, at) == "{"
    is_minus = opened and _key(tokens, at + 1) == "-"
    place = at + opened + is_minus
    number = _at(tokens, place)
    if number is None or number.value is None or (opened and _key(tokens, place + 1) != "}"):
        return None
    return Literal(at, place + opened, -number.value if is_minus else number.value, "digits")


def _from_words(tokens: Sequence[Token], at: int) -> Literal | None:
    """`forty-two`, `one hundred and five`, `two thirds`, `a half`, `three point five`, `two and a half`."""
    word = tokens[at].key.casefold()
    if word in ("a", "an"):
        following = _key(tokens, at + 1)
        if following in _PARTS:
            return Literal(at, at + 1, Fraction(1, _PARTS[following]), "words")
        if following not in ("hundred", "dozen", *_SCALES):
            return None
    elif word not in _NUMBER_WORDS:
        return None
    if word == "half":
        return Literal(at, at, Fraction(1, 2), "words")
    value, last = _whole_words(tokens, at)
    if last < at:
        return None
    return _with_part(tokens, Literal(at, last, Fraction(value), "words"))


def _with_part(tokens: Sequence[Token], found: Literal) -> Literal:
    """What may follow a whole number in words: `thirds`, `and a half`, `point five`."""
    after = found.last + 1
    hyphen = _key(tokens, after) == "-"
    part = _key(tokens, after + hyphen)
    if part in _PARTS and not (_PARTS[part] > 2 and found.value == 1 and part.endswith("s")):
        return Literal(found.first, after + hyphen, found.value / _PARTS[part], "words")
    if _key(tokens, after) == "and" and _key(tokens, after + 1) in ("a", "one") and _key(tokens, after + 2) in _PARTS:
        return Literal(found.first, after + 2, found.value + Fraction(1, _PARTS[_key(tokens, after + 2)]), "words")
    if _key(tokens, after) == "point" and _key(tokens, after + 1) in _UNITS:
        digits, place = "", after + 1
        while _UNITS.get(_key(tokens, place), 10) < 10:
            digits += str(_UNITS[_key(tokens, place)])
            place += 1
        if digits:
            value = found.value + Fraction(int(digits), 10 ** len(digits))
            return Literal(found.first, place - 1, value, "words", len(digits))
    return found


def _whole_words(tokens: Sequence[Token], at: int) -> tuple[int, int]:
    """The whole number that begins at a word, and its last token (before `at` where none does)."""
    total, group, scale, place = 0, 0, 10**15, at
    ends = [(0, at - 1)]
    """Value and last token, as far as it is read; the last is the one that holds."""
    while place < min(len(tokens), at + _MAX_WORDS):
        word = tokens[place].key.casefold()
        if word in ("a", "an") and place == at:
            group = 1
        elif word in _TENS and group % 100 == 0:
            group += _TENS[word]
        elif word in _UNITS and _takes_unit(group, _UNITS[word]):
            group += _UNITS[word]
        elif word == "hundred" and (0 < group < 100 or place == at):
            group = max(group, 1) * 100
        elif word == "dozen" and group < 100:
            return total + 12 * max(group, 1), place
        elif word in _SCALES and (group or place == at):
            if _SCALES[word] >= scale:  # another number, of which a part was taken for this one's
                return next(
                    (end for end in reversed(ends) if end[1] < place and tokens[end[1] + 1].key == ","), ends[-1]
                )
            scale = _SCALES[word]
            total, group = total + max(group, 1) * scale, 0
        elif word in ("and", ",", "-") and _joins(word, group, total, _key(tokens, place + 1)):
            place += 1
            continue
        else:
            break
        ends.append((total + group, place))
        place += 1
    return ends[-1]


def _takes_unit(group: int, unit: int) -> bool:
    """Whether `group` can be followed by a number below 20: `twenty` by `two`, `hundred` by `twelve`."""
    return group == 0 or (unit > 0 and (group % 100 == 0 or (group % 10 == 0 and group % 100 >= 20 and unit < 10)))


def _joins(word: str, group: int, total: int, following: str) -> bool:
    """Whether `and`, a comma or a hyphen stands within a number: `hundred and two`, `thousand, two hundred`, `forty-two`."""
    if following.casefold() not in _NUMBER_WORDS - {"half"}:
        return False
    within = {"and": group % 100 == 0, ",": group == 0 and total > 0, "-": group % 100 >= 20 and group % 10 == 0}
    return within[word]


def _with_percent(tokens: Sequence[Token], found: Literal) -> Literal:
    after = found.last + 1
    if _key(tokens, after) in ("%", "percent", "\\textpercent"):
        return _replaced(found, last=after, is_percent=True)
    if _keys(tokens, after, 2) == ["per", "cent"]:
        return _replaced(found, last=after + 1, is_percent=True)
    return found


def _with_sign(tokens: Sequence[Token], found: Literal) -> Literal:
    """A minus belongs to a number that nothing is subtracted from."""
    at = found.first - 1
    while at >= 0 and tokens[at].key in ("$", "\\$", "€", "£"):
        at -= 1
    sign = _key(tokens, at)
    if sign in ("minus", "negative"):
        return _replaced(found, first=at, value=-found.value)
    if sign != "-" or (at > 0 and _is_operand(tokens, at - 1, at)):
        return found
    is_bullet = (at == 0 or tokens[at - 1].kind is Kind.NEWLINE) and tokens[at].end < tokens[at + 1].start
    return found if is_bullet else _replaced(found, first=at, value=-found.value)


def _is_operand(tokens: Sequence[Token], at: int, sign_at: int) -> bool:
    """Whether the token before a minus is something to subtract from: a number, a variable, a closed bracket. In `2 -3`,
    with a blank on one side only, the minus is a sign."""
    token = tokens[at]
    if token.end < tokens[sign_at].start and tokens[sign_at].end == tokens[sign_at + 1].start:
        return False
    if token.kind is Kind.NUMBER or token.key in (")", "]", "}", "\\pi", "\\infty"):
        return True
    is_glued = token.end == tokens[sign_at].start
    return token.kind is Kind.WORD and (is_glued or (len(token.text) == 1 and token.text not in ("a", "A")))


def _replaced(
    found: Literal,
    *,
    first: int | None = None,
    last: int | None = None,
    value: Fraction | None = None,
    is_percent: bool | None = None,
) -> Literal:
    return Literal(
        found.first if first is None else first,
        found.last if last is None else last,
        found.value if value is None else value,
        found.form,
        found.num_decimals,
        found.is_percent if is_percent is None else is_percent,
    )


def _at(tokens: Sequence[Token], at: int) -> Token | None:
    return tokens[at] if 0 <= at < len(tokens) else None


def _key(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].key if 0 <= at < len(tokens) else ""


def _keys(tokens: Sequence[Token], at: int, count: int) -> list[str]:
    return [token.key for token in tokens[at : at + count]]
