"""Sums and products of known difficulty, generated from a seed, and a solver that looks one column ahead.

A column whose digits sum to 9 passes on the carry that it receives. A solver that writes from the left and looks one column
ahead cannot see this carry: the column is open, and the digit before it is a guess. Easy problems have 0 open columns, hard
ones 4.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from midthought.data.problems.problem_sets import QUESTION_LABEL
from midthought.data.tasks import DATASET_LABEL
from midthought.feedback.critics.hints import calculation_of
from midthought.types import Task

NUM_DIGITS = 9
OPEN_PLACES = (1, 3, 5, 7)
"""Open columns of a hard problem, from the left. No two are neighbours, so each hides one carry."""
CHECKED_AS = "multiplication"
"""Data set whose answers are checked in the same way: the last number counts."""
DIFFICULTY_LABEL = "difficulty"

_FACTOR = 3
_FACTOR_DIGITS = {"none": (0, 1, 2), "carry": (4, 5, 6), "open": (3,)}
"""Digits whose triple, with a carry of at most 1, passes on no carry, a carry of 1, or the carry that it receives."""
_TERM_DIGIT = 5
"""Every digit of a sum's second number. A small model learns one such digit in minutes; all ten would take hours."""
_PRODUCT_SHARE = 0.65


def make_problems(
    num_problems: int, *, hard_share: float, draw: random.Random, name: str, taken: Collection[str] = ()
) -> list[Task]:
    """Returns `num_problems` distinct problems, none with a prompt in `taken`; hard and easy ones in random order.

    >>> easy, _ = make_problems(2, hard_share=0.0, draw=random.Random(0), name="test")
    >>> Columns.of(easy).answer([]) == easy.answer
    True
    """
    seen = set(taken)
    tasks: list[Task] = []
    num_hard = round(hard_share * num_problems)
    for number in draw.sample(range(num_problems), num_problems):
        task = draw_problem(draw, is_hard=number < num_hard, task_id=f"{name}-{len(tasks)}", taken=seen)
        seen.add(task.prompt)
        tasks.append(task)
    return tasks


def draw_problem(draw: random.Random, *, is_hard: bool, task_id: str, taken: Collection[str] = ()) -> Task:
    """Draws one problem whose prompt is not in `taken`."""
    while True:
        is_product = draw.random() < _PRODUCT_SHARE
        kinds = _kinds(draw, is_hard)
        column = _product_column if is_product else _sum_column
        columns = [column(kind, place, draw) for place, kind in enumerate(kinds)]
        first, second = (int("".join(map(str, digits))) for digits in zip(*columns, strict=True))
        question = f"Calculate {first} * {_FACTOR}." if is_product else f"Calculate {first} + {second}."
        if question not in taken:
            answer = first * _FACTOR if is_product else first + second
            labels = {
                DATASET_LABEL: CHECKED_AS,
                QUESTION_LABEL: question,
                DIFFICULTY_LABEL: "hard" if is_hard else "easy",
                "kind": "product" if is_product else "sum",
            }
            return Task(task_id=task_id, prompt=question, answer=str(answer), labels=labels)


def _kinds(draw: random.Random, is_hard: bool) -> list[str]:
    """Draws what each column passes on, from the left."""
    kinds = ["none", *(draw.choice(("none", "carry")) for _ in range(NUM_DIGITS - 1))]
    return ["open" if is_hard and place in OPEN_PLACES else kind for place, kind in enumerate(kinds)]


def _sum_column(kind: str, place: int, draw: random.Random) -> tuple[int, int]:
    fewest = 1 if place == 0 else 0
    return draw.choice([digit for digit in range(fewest, 10) if _hands_on(digit + _TERM_DIGIT) == kind]), _TERM_DIGIT


def _product_column(kind: str, place: int, draw: random.Random) -> tuple[int, int]:
    digits = [digit for digit in _FACTOR_DIGITS[kind] if digit or place]
    return draw.choice(digits), 0


def _hands_on(value: int) -> str:
    return "open" if value == 9 else "carry" if value > 9 else "none"


# -- solving with one column of look-ahead -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a problem, from the left: the value of each before any carry."""

    values: tuple[int, ...]

    @classmethod
    def of(cls, task: Task) -> Columns:
        """Returns the columns of a task. Raises `DataError` if the task is not a calculation."""
        asked = calculation_of(task)
        digits = str(asked.first)
        if asked.sign == "+":
            return cls(tuple(int(a) + int(b) for a, b in zip(digits, str(asked.second), strict=True)))
        return cls(tuple(int(digit) * asked.second for digit in digits))

    @property
    def guessed(self) -> list[int]:
        """Places, from the left, whose carry comes through an open column and cannot be seen."""
        return [place for place, value in enumerate(self.values[1:-1]) if value == 9]

    def answer(self, carries: Sequence[bool]) -> str:
        """Returns the result with these carries at the guessed places; all other carries are exact."""
        guesses = dict(zip(self.guessed, carries, strict=True))
        values = (*self.values, 0)
        return "".join(
            str((value + guesses.get(place, values[place + 1] > 9)) % 10) for place, value in enumerate(self.values)
        )
