"""The policy's own false statement of arithmetic, as critics name it."""

from __future__ import annotations

from midthought.feedback.critics.critic import can_be_quoted
from midthought.feedback.critics.equations import equations
from midthought.types import Task


def false_step(task: Task, steps: str, base: int = 10) -> str | None:
    """A sentence about the first statement that is false; None where all are true. It is quoted where that tells nothing."""
    false = next((each for each in equations(steps, base) if not each.is_true), None)
    if false is None:
        return None
    statement = f"{false.left} = {false.right}"
    if not can_be_quoted(task, statement):
        return "One of your calculations is wrong. Do each of them again."
    return step_is_wrong(statement)


def step_is_wrong(statement: str) -> str:
    return f"This step is wrong: {statement}. Do it again, then go on from there."
