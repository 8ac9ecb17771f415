"""Reads the fields of a row in the forms that files give them, and makes the task. Does not depend on a data set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.data.problems.prompts import prompt_of
from midthought.data.tasks import DATASET_LABEL, RowError
from midthought.types import Task

QUESTION_LABEL, OPTIONS_LABEL, SOLUTION_LABEL = "question", "options", "solution"
"""Labels of a problem's task, besides its data set: question without options, texts of the options, worked solution."""


def text_of(row: Mapping[str, Any], *names: str) -> str:
    """The text of the first column of these names that has one, ignoring the case of the names; numbers as digits.

    Raises RowError if there is none.
    """
    found = optional_text(row, *names)
    if found is None:
        raise RowError(f"it has no {' or '.join(map(repr, names))}; it has: {', '.join(map(str, row)) or 'nothing'}")
    return found


def optional_text(row: Mapping[str, Any], *names: str) -> str | None:
    """The same; None if there is none."""
    return next((said for name in names if (said := as_text(value_of(row, name))) is not None), None)


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, ignoring the case of its name; None without the column. Arrays become lists, their scalars
    numbers."""
    columns = {str(column).casefold(): column for column in reversed(list(row))}
    value: Any = row.get(name if name in row else columns.get(name.casefold(), ""))
    return value.tolist() if hasattr(value, "tolist") else value


def as_text(value: Any) -> str | None:
    """A text without blanks around it, or a number as digits; None for anything else, and for a blank text."""
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, int | float):
        return str(int(value)) if value == int(value) else str(value)
    return value.strip() or None if isinstance(value, str) else None


def problem_task(
    dataset: str,
    task_id: str,
    question: str,
    answer: str,
    *,
    aliases: Sequence[str] = (),
    options: Sequence[str] = (),
    solution: str | None = None,
    subject: str | None = None,
    level: str | None = None,
) -> Task:
    """The task of one problem. What is None has no label."""
    labels = {
        DATASET_LABEL: dataset,
        QUESTION_LABEL: question,
        OPTIONS_LABEL: list(options) or None,
        SOLUTION_LABEL: solution,
        "subject": subject,
        "level": level,
    }
    return Task(
        task_id=task_id,
        prompt=prompt_of(dataset, question, options),
        answer=answer,
        aliases=tuple(aliases),
        labels={name: value for name, value in labels.items() if value is not None},
    )
