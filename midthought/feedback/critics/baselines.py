"""Critics to compare others with: `none`, `outcome` and `wrong`."""

from __future__ import annotations

import re

from midthought.data.tasks import DATASET_LABEL
from midthought.env.answers import CHECKS, extract
from midthought.feedback.critics.critic import can_be_quoted, choice_by_hash
from midthought.feedback.critics.equations import equations, step_is_wrong
from midthought.feedback.prompts import RETRY_ONLY
from midthought.types import Task

MAX_ANSWER_CHARS = 200
MAX_SENTENCE_CHARS = 160
"""Limits of what is quoted."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


class RetryOnly:
    """`none`: says only that the answer was wrong. Gains from feedback are compared with this arm."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        return RETRY_ONLY


class Outcome:
    """`outcome`: the answer was wrong, and which text was judged, if the task's data set is known."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        dataset = str(task.labels.get(DATASET_LABEL, ""))
        if dataset not in CHECKS:
            return RETRY_ONLY
        said = extract(dataset, answer)
        if said is None:
            return f"{RETRY_ONLY} No final answer was found in it."
        is_short = len(said) <= MAX_ANSWER_CHARS
        return f"{RETRY_ONLY} This was judged: {said}" if is_short and can_be_quoted(task, said) else RETRY_ONLY


class Wrong:
    """`wrong`: misleading feedback, which shows whether a gain depends on the content of feedback.

    Claims that a true step is false; without such a step, that one of the reasoning's sentences is the mistake.
    """

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        steps = f"{reasoning}\n{answer}"
        true = [f"{each.left} = {each.right}" for each in equations(steps) if each.is_true]
        true = [statement for statement in true if can_be_quoted(task, statement)]
        if true:
            return f"{RETRY_ONLY} {step_is_wrong(true[choice_by_hash(len(true), task.task_id, steps)])}"
        sentences = [each.strip()[:MAX_SENTENCE_CHARS] for each in _SENTENCE_END.split(steps) if each.strip()]
        sentences = [sentence for sentence in sentences if can_be_quoted(task, sentence)]
        if not sentences:
            return f"{RETRY_ONLY} You misread the problem: it asks for the opposite."
        return f"{RETRY_ONLY} You go wrong here: {sentences[choice_by_hash(len(sentences), task.task_id, steps)]}"
