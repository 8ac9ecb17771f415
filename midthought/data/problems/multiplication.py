"""Products of two five-digit numbers in base 10 and 16: read from files, or generated from a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from midthought.data.problems.fields import optional_text, problem_task, text_of
from midthought.data.rows import Row
from midthought.data.tasks import RowError
from midthought.types import Task

BASES = {"multiplication": 10, "hex": 16}
NUM_DIGITS = 5

_ASKED = {
    "multiplication": "Calculate the following question: {} * {}.",
    "hex": "Calculate the following question, where each number is represented in base 16: {} * {}.",
}
_FACTORS = {
    10: re.compile(r"(?<!\w)(\d[\d,]*+)\s*+[*×x]\s*+(\d[\d,]*+)(?!\w)"),
    16: re.compile(r"(?<!\w)([0-9A-Fa-f]++)\s*+[*×x]\s*+([0-9A-Fa-f]++)(?!\w)"),
}


def read_product(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """`question` and `answer`; the worked solution is `Explanation`, or is calculated. The seed is not used.

    Raises RowError if the answer is not the product of the two numbers in the question.
    """
    base = BASES[dataset]
    question, answer = text_of(row, "question"), text_of(row, "answer")
    found = _FACTORS[base].search(question)
    if found is None:
        raise RowError(f"its question {question[:60]!r} names no product, as in '12345 * 67890'")
    first, second = (int(factor.replace(",", ""), base) for factor in found.groups())
    try:
        said = int(answer.replace(",", ""), base)
    except ValueError:
        said = None
    if said != first * second:
        raise RowError(f"its answer is {answer[:60]!r}, the product is {written(first * second, base)}")
    solution = optional_text(row, "Explanation") or worked_product(first, second, base)
    return problem_task(dataset, task_id, question, answer, solution=solution)


def product_rows(dataset: str, num_rows: int, seed: int) -> Iterator[Row]:
    """Rows with products of two random numbers of `NUM_DIGITS` digits; no product occurs twice."""
    base = BASES[dataset]
    draw = random.Random(f"{dataset}:{seed}")
    seen: set[tuple[int, int]] = set()
    while len(seen) < num_rows:
        first, second = (draw.randrange(base ** (NUM_DIGITS - 1), base**NUM_DIGITS) for _ in range(2))
        if (first, second) in seen:
            continue
        seen.add((first, second))
        question = _ASKED[dataset].format(written(first, base), written(second, base))
        yield Row(
            f"{dataset}-{seed}", "row", len(seen), {"question": question, "answer": written(first * second, base)}
        )


def worked_product(first: int, second: int, base: int) -> str:
    """Long multiplication from the last digit on, with the running sums.

    >>> print(worked_product(12, 34, 10))
    12 * 4 = 48. The sum so far is 48.
    12 * 3 = 36, moved by 1: 360. The sum so far is 408.
    So 12 * 34 = 408.
    """
    lines, total = [], 0
    for place, digit in enumerate(reversed(written(second, base))):
        product = first * int(digit, base)
        total += product * base**place
        moved = f", moved by {place}: {written(product * base**place, base)}" if place else ""
        step = f"{written(first, base)} * {digit} = {written(product, base)}{moved}"
        lines.append(f"{step}. The sum so far is {written(total, base)}.")
    return "\n".join([*lines, f"So {written(first, base)} * {written(second, base)} = {written(total, base)}."])


def written(number: int, base: int) -> str:
    """A number's digits in base 10 or 16."""
    return f"{number:X}" if base == 16 else str(number)
