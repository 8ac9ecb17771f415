"""MMLU, MMLU-Pro and GPQA: a question and two to ten options, one of which is right."""

from __future__ import annotations

import csv
import hashlib
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from midthought.data.options import named_letter
from midthought.data.problems.fields import list_of, optional_text, problem_task, text_of, value_of
from midthought.data.problems.prompts import LETTERS
from midthought.data.rows import Row, rows_of, separated_rows
from midthought.data.tasks import RowError
from midthought.types import Task

MIN_OPTIONS = 2

_OPTION_COLUMNS = ("choices", "options")
_RIGHT, _WRONG = "Correct Answer", ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def read_multiple_choice(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """MMLU and MMLU-Pro: `question`, options in `choices`, `options` or columns A, B, …, `answer` a letter or an index from 0.

    The options keep the order of the row; the seed is not used.
    """
    options = next((found for name in _OPTION_COLUMNS if (found := list_of(value_of(row, name)))), None)
    if options is None:
        options = [said for letter in LETTERS if (said := optional_text(row, letter)) is not None]
    if not MIN_OPTIONS <= len(options) <= len(LETTERS):
        raise RowError(f"it has {len(options)} options; a problem has {MIN_OPTIONS} to {len(LETTERS)}")
    answer = text_of(row, "answer")
    letter = named_letter(answer.strip("() ."), len(options))
    if letter is None:
        raise RowError(
            f"its answer {answer[:60]!r} is none of its {len(options)} options; give a letter, or an index from 0"
        )
    about = {"subject": optional_text(row, "subject", "category", "type")}
    solution = optional_text(row, "cot_content", "explanation")
    question = text_of(row, "question")
    return problem_task(dataset, task_id, question, letter, options=options, solution=solution, about=about)


def read_gpqa(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """GPQA's own columns (`Question`, `Correct Answer`, `Incorrect Answer 1` to `3`, `Explanation`). The options are shuffled by
    the seed and the question, so a row has the same order in every file. Rows with `options` keep their order."""
    right = optional_text(row, _RIGHT)
    if right is None:
        return read_multiple_choice(dataset, row, task_id, seed)
    question = text_of(row, "question")
    options = [right, *(text_of(row, name) for name in _WRONG)]
    order = list(range(len(options)))
    digest = hashlib.sha256(f"{seed}\x1f{question}".encode(errors="replace")).digest()
    random.Random(digest).shuffle(order)
    return problem_task(
        dataset,
        task_id,
        question,
        LETTERS[order.index(0)],
        options=[options[place] for place in order],
        solution=optional_text(row, "Explanation"),
        about={"subject": optional_text(row, "Subdomain", "High-level domain")},
    )


def multiple_choice_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, also of MMLU's CSV files without a header (question, A, B, C, D, letter)."""
    if path.suffix.lower() != ".csv" or not path.is_file() or not _names_no_columns(path):
        yield from rows_of(path)
        return
    yield from separated_rows(path, _unnamed_fields)


def _names_no_columns(path: Path) -> bool:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        try:
            fields = next(csv.reader(file), [])
        except csv.Error:
            return False
    return len(fields) > MIN_OPTIONS + 1 and len(fields[-1].strip()) == 1 and fields[-1].strip() in LETTERS


def _unnamed_fields(fields: list[str]) -> Mapping[str, Any]:
    if len(fields) < MIN_OPTIONS + 2:
        raise ValueError(f"it has {len(fields)} fields; it needs a question, options and a letter")
    question, *options, answer = fields
    return {"question": question, "choices": options, "answer": answer}
