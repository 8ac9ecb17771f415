"""MATH and AIME: a problem, a solution that ends in a box, and often the answer beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midthought.env.answer_matching import last_boxed
from midthought.feedback.problems.fields import FieldError, optional_text, problem_task, text_of
from midthought.types import Task


def read_mathematics(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """MATH-500 and MATH (`problem`, `solution`, perhaps `answer`), AIME (`Problem`, `Answer`). The seed changes nothing."""
    solution = optional_text(row, "solution")
    answer = optional_text(row, "answer") or (last_boxed(solution) if solution else None)
    if not answer:
        raise FieldError("it has neither an answer nor a solution with a \\boxed{} one")
    about = {
        "subject": optional_text(row, "subject", "type"),
        "level": optional_text(row, "level"),
    }
    question = text_of(row, "problem", "question")
    return problem_task(dataset, task_id, question, answer, solution=solution, about=about)
