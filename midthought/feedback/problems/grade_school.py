"""GSM8K: word problems whose answer stands behind `####` at the end of the worked solution."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from midthought.env.answer_matching import last_number
from midthought.feedback.problems.fields import FieldError, problem_task, text_of
from midthought.types import Task

_CALCULATION = re.compile(r"<<[^<>]*+>>")


def read_gsm8k(dataset: str, row: Mapping[str, Any], task_id: str, seed: int) -> Task:
    """`question` and `answer`: a solution with `#### 18` at its end, or the number alone. The seed changes nothing.

    The calculator's marks (`<<16-3=13>>`) are left out of the worked solution.
    """
    solution, marked, answer = text_of(row, "answer").rpartition("####")
    answer = answer.strip()
    if last_number(answer) is None:
        raise FieldError(f"its answer {answer[:60]!r} holds no number")
    worked = _CALCULATION.sub("", solution).strip() if marked else None
    return problem_task(dataset, task_id, text_of(row, "question"), answer, solution=worked or None)
