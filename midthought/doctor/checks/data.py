"""Checks of the tasks: gold answers exist, and the prompts do not state them. They need no policy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from midthought.doctor.registry import check
from midthought.doctor.setup import Setup
from midthought.env.reasoning import normalised
from midthought.guards.finding import Finding
from midthought.types import Task

_LEAD = re.compile(
    r"(?:answer|solution|result|ground.?truth|label|target|####|=|=>)\W{0,8}(?:is\W{0,4})?$", re.IGNORECASE
)
"""The end of a text that announces an answer."""


@check("gold_answers", is_fast=True)
def gold_answers(setup: Setup) -> Iterator[Finding]:
    """Either all tasks have a gold answer, or none."""
    missing = [task for task in setup.known_tasks if not task.answer.strip()]
    if missing and len(missing) < len(setup.tasks):
        yield Finding(
            observation=f"{len(missing)} of {len(setup.tasks)} tasks have an empty gold answer, such as {missing[0].task_id!r}",
            causes=("rows without a value in the answer column",),
            action="leave these rows out, or complete them",
        )


@check("answer_in_prompt", is_fast=True)
def answer_in_prompt(setup: Setup) -> Iterator[Finding]:
    """Prompts do not announce their gold answer."""
    tasks = setup.tasks_with_answers
    stated = [task for task in tasks if _is_stated(task)]
    if len(stated) > 0.5 * len(tasks) and len({normalised(task.answer) for task in tasks}) > 1:
        yield Finding(
            observation=f"the prompts of {len(stated)} of {len(tasks)} tasks state the gold answer, for example "
            f"{stated[0].prompt[-60:]!r}",
            causes=(
                "the prompt column holds question and solution",
                "the gold answer was written into the prompt twice",
            ),
            action="give the column of the question alone as the prompt; the policy would learn to copy",
        )


def _is_stated(task: Task) -> bool:
    """Whether the prompt has the answer at its end or after words that announce one."""
    prompt, answer = task.prompt.strip(), task.answer.strip()
    for found in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", prompt):
        is_last = found.end() >= len(prompt.rstrip(".!)]}\"'` "))
        if is_last or _LEAD.search(prompt[: found.start()]):
            return True
    return False
