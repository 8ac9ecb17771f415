"""Finds arithmetic statements in a text (`7 * 4 = 28`), in base 10 or 16, and checks them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from midthought.feedback.critics.critic import can_be_quoted
from midthought.tools.builtin.calculate import CalculationError, calculate
from midthought.types import Task

MAX_TERMS = 12
"""Longer chains of operations are not read."""

_TEN = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,30}(?:\.\d{1,30})?"
_SIXTEEN = r"(?:0[xX])?[0-9A-Fa-f]{1,30}"
_SIGNS = {"*": "*", "×": "*", "·": "*", "x": "*", "\\times": "*", "\\cdot": "*", "+": "+", "-": "-", "−": "-"}
_SIGNS |= {"/": "/", "÷": "/", "\\div": "/"}
_SIGN = r"\\times|\\cdot|\\div|[*×·+−÷/-]|(?<=\s)x(?=\s)"


def _pattern(number: str) -> re.Pattern[str]:
    """A number, operators and numbers, `=`, a number. The characters around it must not belong to the same calculation."""
    return re.compile(
        rf"(?<![\w.,^/*×·+−÷)\\-])(?<![*×·+−÷/-]\s)(?P<left>\$?(?:{number})(?:\s{{0,2}}(?:{_SIGN})\s{{0,2}}\$?(?:{number})){{1,{MAX_TERMS}}})"
        rf"\s{{0,2}}=\s{{0,2}}\$?(?P<right>-?(?:{number}))(?![\w^])(?!\s{{0,2}}(?:{_SIGN})\s{{0,2}}[\w(])(?!\.\d)"
    )


_EQUATION = {10: _pattern(_TEN), 16: _pattern(_SIXTEEN)}
_PART = {base: re.compile(rf"{number}|{_SIGN}") for base, number in ((10, _TEN), (16, _SIXTEEN))}


@dataclass(frozen=True, slots=True)
class Equation:
    """One statement as written: `left = right`."""

    left: str
    right: str
    value: Fraction
    """Value of the left side."""
    is_true: bool


def equations(text: str, base: int = 10) -> Iterator[Equation]:
    """The arithmetic statements of a text in order. Division is exact; a correctly rounded quotient counts as true."""
    for found in _EQUATION[base].finditer(text):
        value = _value(found["left"], base)
        if value is not None:
            stated = Fraction(_decimal(found["right"], base))
            yield Equation(found["left"], found["right"], value, _are_equal(value, stated, found["right"]))


def _value(left: str, base: int) -> Fraction | None:
    """Returns the value of the left side; None on division by zero."""
    parts = _PART[base].findall(left)
    try:
        return Fraction(calculate("".join(_SIGNS.get(part) or _decimal(part, base) for part in parts)))
    except CalculationError:
        return None


def _decimal(number: str, base: int) -> str:
    plain = number.replace(",", "")
    return str(int(plain, 16)) if base == 16 else plain


def _are_equal(value: Fraction, stated: Fraction, written: str) -> bool:
    num_decimals = len(written.partition(".")[2])
    return value == stated or (num_decimals > 0 and abs(value - stated) <= Fraction(1, 2 * 10**num_decimals))


def false_step(task: Task, steps: str, base: int = 10) -> str | None:
    """A sentence about the first false statement; None if all are true. Quotes the statement unless masking would change it."""
    false = next((each for each in equations(steps, base) if not each.is_true), None)
    if false is None:
        return None
    statement = f"{false.left} = {false.right}"
    if not can_be_quoted(task, statement):
        return "One of your calculations is wrong. Do each of them again."
    return step_is_wrong(statement)


def step_is_wrong(statement: str) -> str:
    return f"This step is wrong: {statement}. Do it again, then go on from there."
