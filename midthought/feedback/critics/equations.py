"""Finds the statements of arithmetic in a text (`7 * 4 = 28`) and says which are false. In base 10 or 16; knows no task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

MAX_TERMS = 12
"""A chain of more operations is no step that a hint could name."""

_TEN = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,30}(?:\.\d{1,30})?"
_SIXTEEN = r"(?:0[xX])?[0-9A-Fa-f]{1,30}"
_SIGNS = {"*": "*", "×": "*", "·": "*", "x": "*", "\\times": "*", "\\cdot": "*", "+": "+", "-": "-", "−": "-"}
_SIGNS |= {"/": "/", "÷": "/", "\\div": "/"}
_SIGN = r"\\times|\\cdot|\\div|[*×·+−÷/-]|(?<=\s)x(?=\s)"


def _pattern(number: str) -> re.Pattern[str]:
    """A number, signs and numbers, `=`, a number. What stands before and after must not belong to it."""
    return re.compile(
        rf"(?<![\w.,^/*×·+−÷)\\-])(?<![*×·+−÷/-]\s)(?P<left>\$?(?:{number})(?:\s{{0,2}}(?:{_SIGN})\s{{0,2}}\$?(?:{number})){{1,{MAX_TERMS}}})"
        rf"\s{{0,2}}=\s{{0,2}}\$?(?P<right>-?(?:{number}))(?![\w^])(?!\s{{0,2}}(?:{_SIGN})\s{{0,2}}[\w(])(?!\.\d)"
    )


_EQUATION = {10: _pattern(_TEN), 16: _pattern(_SIXTEEN)}
_PART = {base: re.compile(rf"{number}|{_SIGN}") for base, number in ((10, _TEN), (16, _SIXTEEN))}


@dataclass(frozen=True, slots=True)
class Equation:
    """One statement as it was written: `left = right`."""

    left: str
    right: str
    value: Fraction
    """What the left side comes to."""
    is_true: bool


def equations(text: str, base: int = 10) -> Iterator[Equation]:
    """The statements of arithmetic in a text, in their order. Division is exact; a quotient that was rounded is true."""
    for found in _EQUATION[base].finditer(text):
        value = _value(found["left"], base)
        if value is not None:
            stated = _number(found["right"], base)
            yield Equation(found["left"], found["right"], value, _are_equal(value, stated, found["right"]))


def _value(left: str, base: int) -> Fraction | None:
    """Products and quotients before sums; None where it divides by zero."""
    total, product, sign, operation = Fraction(0), Fraction(0), 1, "+"
    for part in _PART[base].findall(left):
        if part in _SIGNS:
            operation = _SIGNS[part]
            continue
        number = _number(part, base)
        if operation in "+-":
            total += sign * product
            product, sign = number, -1 if operation == "-" else 1
        elif operation == "*":
            product *= number
        elif number:
            product /= number
        else:
            return None
    return total + sign * product


def _number(text: str, base: int) -> Fraction:
    plain = text.replace(",", "")
    return Fraction(int(plain, 16)) if base == 16 else Fraction(plain)


def _are_equal(value: Fraction, stated: Fraction, written: str) -> bool:
    num_decimals = len(written.partition(".")[2])
    return value == stated or (num_decimals > 0 and abs(value - stated) <= Fraction(1, 2 * 10**num_decimals))
