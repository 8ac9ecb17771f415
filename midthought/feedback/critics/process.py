"""`process`: compares the reasoning with the worked solution and quotes the first step that is missing."""

from __future__ import annotations

import re

from midthought.errors import DataError
from midthought.feedback.critics.critic import worked_solution
from midthought.feedback.critics.equations import false_step
from midthought.feedback.prompts import RETRY_ONLY
from midthought.types import Task

MAX_STEP_CHARS = 600

_STEP_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z$\\])|\n+")
_CALCULATOR_NOTE = re.compile(r"<<[^<>\n]{0,200}>>")
_FINAL = re.compile(r"^\s*(?:####|A:)")
_ASYMPTOTE = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


class Process:
    """Names the first false calculation of the reasoning. Without one, it quotes the first step of the worked solution with a
    number that does not occur in the reasoning, and leaves out the step's result.

    Raises DataError for a task without a worked solution (label `solution`).
    """

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        solution = worked_solution(task)
        if not solution:
            raise DataError(
                f"task {task.task_id!r} has no worked solution (label 'solution'), which the critic 'process' needs; "
                "use 'outcome', 'hints' or 'model' for such tasks"
            )
        steps = f"{reasoning}\n{answer}"
        false = false_step(task, steps)
        if false is not None:
            return f"{RETRY_ONLY} {false}"
        known = set(_numbers(steps)) | set(_numbers(task.prompt))
        parts = solution_steps(solution)
        for number, step in enumerate(parts, 1):
            if not set(_numbers(step)) <= known:
                before = (
                    "At the first step"
                    if number == 1
                    else f"Up to step {number - 1} you agree with a right solution; then"
                )
                return (
                    f"{RETRY_ONLY} {before} yours goes another way. What is to be done there: {_without_result(step)}"
                )
        return f"{RETRY_ONLY} The numbers are right; read again what the problem asks for, and in which form."


def solution_steps(solution: str) -> list[str]:
    """The sentences and lines of a worked solution, without gsm8k's calculator notes and its final line.

    >>> solution_steps("He has 2 + 3 = <<2+3=5>>5 pens. Then 1 is lost.\\n#### 4")
    ['He has 2 + 3 = 5 pens.', 'Then 1 is lost.']
    """
    text = _ASYMPTOTE.sub("", _CALCULATOR_NOTE.sub("", solution))
    parts = (part.strip() for part in _STEP_END.split(text))
    return [part[:MAX_STEP_CHARS] for part in parts if part and not _FINAL.match(part)]


def _without_result(step: str) -> str:
    """The step without the number after its last `=`."""
    head, sign, tail = step.rpartition("=")
    found = _NUMBER.search(tail)
    if not sign or found is None or found.start() > 3:
        return step
    return f"{head}= …{tail[found.end() :]}"


def _numbers(text: str) -> list[str]:
    return [
        number.replace(",", "").rstrip("0").rstrip(".") if "." in number else number.replace(",", "")
        for number in _NUMBER.findall(text)
    ]
