"""Checks of the tasks: gold answers exist and differ, prompts do not state them, and held-out prompts are not trained on. They
need no policy."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from midthought.doctor.registry import check
from midthought.doctor.setup import Setup
from midthought.env.reasoning import normalised
from midthought.guards.finding import Finding
from midthought.types import Task

MIN_TASKS = 4
"""With fewer tasks, equal answers and repeated prompts are not reported."""
MAX_SHARED = 0.1
"""Share of the held-out prompts that may also be training prompts."""
_LEAD = re.compile(
    r"(?:answer|solution|result|ground.?truth|label|target|hint|gold|reference"
    r"|(?:correct|right|expected|true)(?:\s+\w+)?|####|=|=>)\W{0,8}(?:is\W{0,4})?$",
    re.IGNORECASE,
)
"""The end of a text that announces an answer."""
_EXAMPLE = re.compile(r"(?:^|\n)A:\s*$")
"""The same in an example: `Q: …`, `A: …`."""


@check("gold_answers", is_fast=True)
def gold_answers(setup: Setup) -> Iterator[Finding]:
    """Either all tasks have a gold answer, or none. The answers differ, and are not the questions."""
    missing = [task for task in setup.known_tasks if not task.answer.strip()]
    if missing and len(missing) < len(setup.tasks):
        yield Finding(
            observation=f"{len(missing)} of {len(setup.tasks)} tasks have an empty gold answer, such as {missing[0].task_id!r}",
            causes=("rows without a value in the answer column",),
            action="leave these rows out, or complete them",
        )
    answers = [task.answer for task in setup.tasks if task.answer.strip()]
    if len(answers) >= MIN_TASKS and len({normalised(answer) for answer in answers}) == 1:
        yield Finding(
            observation=f"all {len(answers)} gold answers are {answers[0]!r:.60}, so no prompt need be read",
            causes=(
                "the answer column is not the one that was meant",
                "the rows were filtered or sorted by their answer",
            ),
            action="give the column of the answers, and rows with different answers",
        )
    if _share_of_questions(answers) > 0.5 > _share_of_questions([task.prompt for task in setup.tasks]):
        yield Finding(
            observation=f"most gold answers end with a question mark, and most prompts do not, for example {answers[0]!r:.60}",
            causes=("the columns of question and answer are swapped",),
            action="swap prompt_key and answer_key",
        )


def _share_of_questions(texts: list[str]) -> float:
    return sum(text.rstrip().endswith("?") for text in texts) / max(1, len(texts))


@check("repeated_prompts", is_fast=True)
def repeated_prompts(setup: Setup) -> Iterator[Finding]:
    """Most prompts occur once, and equal prompts have the same gold answer."""
    answers = defaultdict(set)
    for task in setup.known_tasks and setup.all_tasks:
        answers[_key(task)].add(normalised(task.answer))
    num_tasks = len(setup.all_tasks)
    if num_tasks >= MIN_TASKS and len(answers) < 0.5 * num_tasks:
        yield Finding(
            observation=f"{num_tasks} tasks have {len(answers)} different prompt{'s' * (len(answers) != 1)}",
            causes=("the prompt column is not the one that was meant", "the rows were repeated"),
            action="give the column of the questions, and every question once: group_size sets the number of its episodes",
        )
    unclear = [key for key, found in answers.items() if len(found) > 1]
    if unclear:
        yield Finding(
            observation=f"{len(unclear)} of {len(answers)} prompts have several gold answers in different rows, for example "
            f"{unclear[0][-1][-60:]!r}",
            causes=("the prompt lacks the part of the row that determines the answer", "contradicting rows"),
            action="write that part into the prompt, or keep one row per prompt (further correct answers: aliases)",
        )


@check("validation", is_fast=True)
def validation(setup: Setup) -> Iterator[Finding]:
    """Few held-out prompts are also training prompts."""
    trained = {_key(task) for task in setup.known_tasks and setup.all_tasks}
    shared = [task for task in setup.held_out if _key(task) in trained]
    if len(shared) > MAX_SHARED * len(setup.held_out):
        yield Finding(
            observation=f"{len(shared)} of {len(setup.held_out)} held-out prompts are also training prompts, for example "
            f"{shared[0].prompt[-60:]!r}; their metrics do not show what the policy does with new prompts",
            causes=("validation is the training data or a part of it", "one question in both files"),
            action="leave these prompts out of the training data",
        )


def _key(task: Task) -> tuple[str, ...]:
    """Returns what the policy reads."""
    return (*(message["content"] for message in task.before), task.prompt)


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


def announces(text: str) -> bool:
    """Whether the text ends with words that announce an answer, such as `the answer is`."""
    return _LEAD.search(text) is not None


def _is_stated(task: Task) -> bool:
    """Whether the prompt has the answer at its end or after words that announce one."""
    prompt, answer = task.prompt.strip(), task.answer.strip()
    for found in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", prompt):
        is_last = found.end() >= len(prompt.rstrip(".!)]}\"'` "))
        before = prompt[: found.start()]
        if is_last or announces(before) or (_EXAMPLE.search(before) and "\nB:" not in prompt):
            return True
    return False
