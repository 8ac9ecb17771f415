"""MATH, AIME, GSM8K and TriviaQA: reads rows whose answer is an expression, a number or a name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from midthought.data.final_answers import last_boxed, last_number, normalised_entity, split_at_mark
from midthought.data.problems.fields import (
    list_of,
    mapping_of,
    optional_text,
    problem_task,
    text_of,
    value_of,
)
from midthought.data.tasks import RowError
from midthought.types import Task

_CALCULATION = re.compile(r"<<[^<>]*+>>")
_NAMES = ("value", "normalized_value", "matched_wiki_entity_name")
_LISTS = ("aliases", "normalized_aliases")


def read_mathematics(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """MATH (`problem`, `solution`, optional `answer`) and AIME (`Problem`, `Answer`). The seed is not used."""
    solution = optional_text(row, "solution")
    answer = optional_text(row, "answer") or (last_boxed(solution) if solution else None)
    if not answer:
        raise RowError("it has neither an answer nor a solution with a \\boxed{} one")
    about = {
        "subject": optional_text(row, "subject", "type"),
        "level": optional_text(row, "level"),
    }
    question = text_of(row, "problem", "question")
    return problem_task(dataset, task_id, question, answer, solution=solution, about=about)


def read_gsm8k(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """GSM8K: `question` and `answer`, which is a solution that ends in `#### 18`, or the number alone. The seed is not used.

    Calculator annotations (`<<16-3=13>>`) are removed from the worked solution.
    """
    solution, answer = split_at_mark(text_of(row, "answer"))
    if last_number(answer) is None:
        raise RowError(f"its answer {answer[:60]!r} holds no number")
    worked = _CALCULATION.sub("", solution or "").strip()
    return problem_task(dataset, task_id, text_of(row, "question"), answer, solution=worked or None)


def read_trivia(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """TriviaQA: `question` and `answer`, which is a mapping (`value`, `aliases`, …), or a text with a column `aliases`.

    Of names that compare as equal, the first is kept. The seed is not used.
    """
    said = mapping_of(value_of(row, "answer"))
    if said is None:
        said = {"value": text_of(row, "answer"), "aliases": value_of(row, "aliases")}
    answer = text_of(said, *_NAMES)
    names = [answer, *(each for name in _LISTS for each in list_of(said.get(name)) or ())]
    names += [each for name in _NAMES if (each := optional_text(said, name))]
    different: dict[str, str] = {}
    for name in names:
        different.setdefault(normalised_entity(name), name)
    _, *aliases = different.values()
    return problem_task(dataset, task_id, text_of(row, "question"), answer, aliases=aliases)
