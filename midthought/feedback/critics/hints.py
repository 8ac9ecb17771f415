"""`hints`: locates the mistake in a product, sum or difference in base 10 or 16 by calculating it.

It never states the result or a partial product, only the policy's own statements, digit places and operands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from midthought.errors import DataError
from midthought.feedback.critics.equations import equations, false_step
from midthought.feedback.prompts import RETRY_ONLY
from midthought.types import Task

_HEXADECIMAL = re.compile(r"\bbase[ -]?(?:16|sixteen)\b|\bhex", re.IGNORECASE)
_CALCULATION = {
    10: re.compile(r"(?<![\w.])(\d[\d,]*)\s*(\*|×|x|\\times|\+|-|−)\s*(\d[\d,]*)(?![\w]|\.\d)"),
    16: re.compile(r"(?<![\w.])([0-9A-Fa-f]+)\s*(\*|×|x|\\times|\+|-|−)\s*([0-9A-Fa-f]+)(?![\w]|\.\d)"),
}
_LAST_NUMBER = {
    10: re.compile(r"(?<![\w.])-?\d[\d,]*(?![\w]|\.\d)"),
    16: re.compile(r"(?<!\w)(?:0[xX])?(?=[0-9A-Fa-f]*\d)[0-9A-Fa-f]+(?!\w)"),
}
PLACES = ("ones", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands", "millions")


@dataclass(frozen=True, slots=True)
class Calculation:
    """The calculation of a problem: two operands, an operator (`*`, `+` or `-`) and their base."""

    first: int
    sign: str
    second: int
    base: int

    @property
    def result(self) -> int:
        return {"*": self.first * self.second, "+": self.first + self.second, "-": self.first - self.second}[self.sign]

    def written(self, number: int) -> str:
        return f"{number:X}" if self.base == 16 else str(number)


class Hints:
    """Names the first false statement; else the first missing partial product; else the place of the first wrong digit.

    Raises DataError for a problem that is not a calculation with two whole numbers.
    """

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        calculation = calculation_of(task)
        steps = f"{reasoning}\n{answer}"
        hint = false_step(task, steps, calculation.base) or _missing_product(steps, calculation)
        return f"{RETRY_ONLY} {hint or _wrong_place(answer, calculation)}"


def calculation_of(task: Task) -> Calculation:
    """The calculation that the task's prompt asks for. Raises DataError if there is none."""
    base = 16 if _HEXADECIMAL.search(task.prompt) else 10
    found = _CALCULATION[base].search(task.prompt)
    if found is None:
        raise DataError(
            f"task {task.task_id!r} asks for no product, sum or difference of two whole numbers, so the critic 'hints' can "
            "calculate nothing; use 'outcome' or 'model' for such tasks"
        )
    first, sign, second = found.groups()
    plain_sign = "+" if sign == "+" else "-" if sign in "-−" else "*"
    return Calculation(int(first.replace(",", ""), base), plain_sign, int(second.replace(",", ""), base), base)


def _missing_product(steps: str, calculation: Calculation) -> str | None:
    """The first partial product, from the right, that is missing; None if the steps contain no calculation."""
    if calculation.sign != "*" or not any(equations(steps, calculation.base)):
        return None
    digits = calculation.written(calculation.second)[::-1]
    written = {_plain(found) for found in _LAST_NUMBER[calculation.base].findall(steps)}
    for place, digit in enumerate(digits):
        product = calculation.first * int(digit, calculation.base)
        shifted = product * calculation.base**place
        if product and not {calculation.written(product), calculation.written(shifted)} & written:
            operand = calculation.written(int(digit, calculation.base) * calculation.base**place)
            return f"Your steps hold no right value for {calculation.written(calculation.first)} × {operand}. Calculate it again."
    return "Every partial product is there; it is their sum that goes wrong. Add them again, column by column, with the carries."


def _wrong_place(answer: str, calculation: Calculation) -> str:
    """The first wrong digit of the answer, from the right."""
    numbers = _LAST_NUMBER[calculation.base].findall(answer)
    if not numbers:
        return "There is no whole number in the answer. Calculate step by step and end with the result."
    said, meant = _plain(numbers[-1]), calculation.written(calculation.result)
    if said.startswith("-") != meant.startswith("-"):
        return "The sign is wrong. Which of the two numbers is the larger one?"
    said, meant = said.lstrip("-"), meant.lstrip("-")
    num_right = next(
        (count for count, (one, other) in enumerate(zip(said[::-1], meant[::-1], strict=False)) if one != other),
        min(len(said), len(meant)),
    )
    if num_right == min(len(said), len(meant)):
        few_or_many = "few" if len(said) < len(meant) else "many"
        return f"The answer has too {few_or_many} digits. Write the steps down and mind the carries on the left."
    place = _place(num_right, calculation.base)
    before = f"the {num_right} digits to its right are right" if num_right > 1 else "what is to its right is right"
    what = "the steps" if calculation.sign == "*" else "that column and its carry"
    return f"The digit at {place} is wrong{f'; {before}' if num_right else ''}. Go through {what} again."


def _place(number: int, base: int) -> str:
    if base == 10 and number < len(PLACES):
        return f"the {PLACES[number]} place"
    return f"place {number + 1} from the right"


def _plain(number: str) -> str:
    """A number in normal form: no separators, prefix or leading zeros; capital letters."""
    digits = number.replace(",", "").upper().removeprefix("0X")
    sign = "-" if digits.startswith("-") else ""
    return sign + (digits.lstrip("-").lstrip("0") or "0")
