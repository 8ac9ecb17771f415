"""Critics, which give feedback on a wrong answer, by name: `hints`, and those to compare others with (`none`, `outcome`,
`wrong`).

`hints` locates the mistake in a product, sum or difference by calculating it. It never states the result or a partial
product, only the policy's own statements, digit places and operands. Statements are found in texts as they are written:
`7 * 4 = 28`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from midthought.data.final_answers import last_number
from midthought.data.tasks import DATASET_LABEL
from midthought.env.answers import CHECKS, extract
from midthought.errors import DataError, SettingsError, near_names
from midthought.feedback.masking import can_be_quoted, mask_answer
from midthought.feedback.model import ModelCritic
from midthought.feedback.settings import RETRY_ONLY, FeedbackSettings
from midthought.tools.builtin.calculate import CalculationError, calculate
from midthought.types import Task

PLACES = ("ones", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands", "millions")
_CALCULATION = re.compile(r"(?<![\w.])(\d[\d,]*)\s*(\*|×|x|\\times|\+|-|−)\s*(\d[\d,]*)(?![\w]|\.\d)")
_LAST_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?![\w]|\.\d)")


@dataclass(frozen=True, slots=True)
class Calculation:
    """The calculation of a problem: two operands and an operator (`*`, `+` or `-`)."""

    first: int
    sign: str
    second: int

    @property
    def result(self) -> int:
        return {"*": self.first * self.second, "+": self.first + self.second, "-": self.first - self.second}[self.sign]


class Hints:
    """Names the first false statement; else the first missing partial product; else the place of the first wrong digit.

    Raises DataError for a problem that is not a calculation with two whole numbers, or not only one.
    """

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        calculation = calculation_of(task)
        steps = f"{reasoning}\n{answer}"
        dataset = _data_set(task)
        said = extract(dataset, answer) if dataset else answer
        hint = _false_step(task, steps) or _missing_product(steps, calculation) or _wrong_place(said or "", calculation)
        return f"{RETRY_ONLY} {hint}"


def _data_set(task: Task) -> str:
    """The task's data set, whose rules find the final answer; empty if it is not known."""
    name = str(task.labels.get(DATASET_LABEL, ""))
    return name if name in CHECKS else ""


def calculation_of(task: Task) -> Calculation:
    """The calculation in the task's prompt whose result is its answer. Raises DataError if there is none."""
    for first, sign, second in _CALCULATION.findall(task.prompt):
        plain_sign = "+" if sign == "+" else "-" if sign in "-−" else "*"
        calculation = Calculation(int(first.replace(",", "")), plain_sign, int(second.replace(",", "")))
        if calculation.result == last_number(task.answer):
            return calculation
    raise DataError(
        f"task {task.task_id!r} asks for no product, sum or difference of two whole numbers that is its answer, so the critic "
        "'hints' can calculate nothing; use 'outcome' or 'model' for such tasks"
    )


def _false_step(task: Task, steps: str) -> str | None:
    """A sentence about the first false statement; None if all are true. Quotes the statement unless masking would change it."""
    false = next((each for each in equations(steps) if not each.is_true), None)
    if false is None:
        return None
    statement = f"{false.left} = {false.right}"
    if not can_be_quoted(task, statement):
        return "One of your calculations is wrong. Do each of them again."
    return step_is_wrong(statement)


def step_is_wrong(statement: str) -> str:
    return f"This step is wrong: {statement}. Do it again, then go on from there."


def _missing_product(steps: str, calculation: Calculation) -> str | None:
    """The first partial product, from the right, that is missing; None if the steps contain no calculation."""
    if calculation.sign != "*" or not any(equations(steps)):
        return None
    written = {_plain(found) for found in _LAST_NUMBER.findall(steps)}
    for place, digit in enumerate(map(int, reversed(str(calculation.second)))):
        product = calculation.first * digit
        if product and not {str(product), str(product * 10**place)} & written:
            operand = digit * 10**place
            return f"Your steps hold no right value for {calculation.first} × {operand}. Calculate it again."
    return "Every partial product is there; it is their sum that goes wrong. Add them again, column by column, with the carries."


def _wrong_place(answer: str, calculation: Calculation) -> str:
    """The first wrong digit of the answer, from the right."""
    numbers = _LAST_NUMBER.findall(answer)
    if not numbers:
        return "There is no whole number in the answer. Calculate step by step and end with the result."
    said, meant = _plain(numbers[-1]), str(calculation.result)
    if said.startswith("-") != meant.startswith("-"):
        return "The sign is wrong. Which of the two numbers is the larger one?"
    said, meant = said.lstrip("-"), meant.lstrip("-")
    shortest = min(len(said), len(meant))
    differ = (count for count, (one, other) in enumerate(zip(said[::-1], meant[::-1], strict=False)) if one != other)
    num_right = next(differ, shortest)
    if num_right == shortest:
        few_or_many = "few" if len(said) < len(meant) else "many"
        return f"The answer has too {few_or_many} digits. Write the steps down and mind the carries on the left."
    place = f"the {PLACES[num_right]} place" if num_right < len(PLACES) else f"place {num_right + 1} from the right"
    before = f"the {num_right} digits to its right are right" if num_right > 1 else "what is to its right is right"
    what = "the steps" if calculation.sign == "*" else "that column and its carry"
    return f"The digit at {place} is wrong{f'; {before}' if num_right else ''}. Go through {what} again."


def _plain(number: str) -> str:
    """A number without separators and leading zeros, of any length."""
    sign = "-" if number.startswith("-") else ""
    return sign + (number.replace(",", "").lstrip("-").lstrip("0") or "0")


# -- statements ----------------------------------------------------------------------------------------------------

MAX_TERMS = 12
"""Longer chains of operations are not read."""

_DIGITS = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,30}(?:\.\d{1,30})?"
_SIGNS = {"*": "*", "×": "*", "·": "*", "x": "*", "\\times": "*", "\\cdot": "*", "+": "+", "-": "-", "−": "-"}
_SIGNS |= {"/": "/", "÷": "/", "\\div": "/"}
_SIGN = r"\\times|\\cdot|\\div|[*×·+−÷/-]|(?<=\s)x(?=\s)"
_EQUATION = re.compile(
    rf"(?<![\w.,^/*×·+−÷)\\-])(?<![*×·+−÷/-]\s)(?P<left>\$?(?:{_DIGITS})(?:\s{{0,2}}(?:{_SIGN})\s{{0,2}}\$?(?:{_DIGITS})){{1,{MAX_TERMS}}})"
    rf"\s{{0,2}}=\s{{0,2}}\$?(?P<right>-?(?:{_DIGITS}))(?![\w^])(?!\s{{0,2}}(?:{_SIGN})\s{{0,2}}[\w(])(?!\.\d)"
)
"""A number, operators and numbers, `=`, a number. The characters around it must not belong to the same calculation."""
_PART = re.compile(rf"{_DIGITS}|{_SIGN}")


@dataclass(frozen=True, slots=True)
class Equation:
    """One statement as written: `left = right`."""

    left: str
    right: str
    is_true: bool


def equations(text: str) -> Iterator[Equation]:
    """The arithmetic statements of a text in order. Division is exact; a correctly rounded quotient counts as true."""
    for found in _EQUATION.finditer(text):
        left, right = found["left"], found["right"]
        try:
            plain = "".join(_SIGNS.get(part) or part.replace(",", "") for part in _PART.findall(left))
            error = abs(Fraction(calculate(plain)) - Fraction(right.replace(",", "")))
        except CalculationError:  # a division by zero
            continue
        num_decimals = len(right.partition(".")[2])
        yield Equation(left, right, error == 0 or (num_decimals > 0 and error <= Fraction(1, 2 * 10**num_decimals)))


MAX_ANSWER_CHARS = 200
MAX_SENTENCE_CHARS = 160
"""Limits of what is quoted."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


class Critic(Protocol):
    """Gives feedback on a wrong answer."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        """What is wrong with `answer`, which `reasoning` led to. May raise ConnectionError or TimeoutError."""
        ...


async def masked_feedback(critic: Critic, task: Task, answer: str, reasoning: str) -> str:
    """Returns a critic's feedback with the task's answer masked."""
    return mask_answer(await critic.feedback(task, answer, reasoning), task)


class RetryOnly:
    """`none`: says only that the answer was wrong. Gains from feedback are compared with this arm."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        return RETRY_ONLY


class Outcome:
    """`outcome`: the answer was wrong, and which text was judged, if the task's data set is known."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        dataset = _data_set(task)
        if not dataset:
            return RETRY_ONLY
        said = extract(dataset, answer)
        if said is None:
            return f"{RETRY_ONLY} No final answer was found in it."
        is_short = len(said) <= MAX_ANSWER_CHARS
        return f"{RETRY_ONLY} This was judged: {said}" if is_short and can_be_quoted(task, said) else RETRY_ONLY


class Wrong:
    """`wrong`: misleading feedback, which shows whether a gain depends on the content of feedback.

    Claims that a true step is false; without such a step, that one of the reasoning's sentences is the mistake.
    """

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        steps = f"{reasoning}\n{answer}"
        true = (f"{each.left} = {each.right}" for each in equations(steps) if each.is_true)
        if statement := _one_of(true, task, steps):
            return f"{RETRY_ONLY} {step_is_wrong(statement)}"
        sentences = (each.strip()[:MAX_SENTENCE_CHARS] for each in _SENTENCE_END.split(steps))
        if sentence := _one_of(sentences, task, steps):
            return f"{RETRY_ONLY} You go wrong here: {sentence}"
        return f"{RETRY_ONLY} You misread the problem: it asks for the opposite."


def _one_of(texts: Iterable[str], task: Task, steps: str) -> str:
    """Returns one of the texts that can be quoted; empty if there is none. Every process makes the same choice."""
    quotable = [text for text in texts if text and can_be_quoted(task, text)]
    digest = hashlib.blake2b(f"{task.task_id}\x1f{steps}".encode(errors="replace"), digest_size=8).digest()
    return quotable[int.from_bytes(digest) % len(quotable)] if quotable else ""


_CRITICS: dict[str, Callable[[FeedbackSettings], Critic]] = {
    "outcome": lambda settings: Outcome(),
    "model": ModelCritic,
    "hints": lambda settings: Hints(),
    "wrong": lambda settings: Wrong(),
    "none": lambda settings: RetryOnly(),
}


def register_critic(name: str, make: Callable[[FeedbackSettings], Critic]) -> None:
    """Registers a critic under a name for `FeedbackSettings.critic`. Raises SettingsError if the name is taken."""
    if not name or name in _CRITICS:
        raise SettingsError(f"a critic cannot be registered as {name!r}: the name is {'taken' if name else 'empty'}")
    _CRITICS[name] = make


def make_critic(settings: FeedbackSettings) -> Critic:
    """The critic that `settings.critic` names. Raises SettingsError for an unknown name (with similar names), and if the
    critic's own settings do not work."""
    if settings.critic not in _CRITICS:
        raise SettingsError(f"critic={settings.critic!r} is unknown. {near_names(settings.critic, _CRITICS)}")
    return _CRITICS[settings.critic](settings)
