"""`wrong`: feedback that leads astray, for experiments: a gain that stays with it does not come from what feedback says."""

from __future__ import annotations

import re

from midthought.feedback.critics.critic import can_be_quoted, choice_by_hash
from midthought.feedback.critics.equations import equations
from midthought.feedback.critics.steps import step_is_wrong
from midthought.feedback.prompts import RETRY_ONLY
from midthought.types import Task

MAX_QUOTED_CHARS = 160

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


class Wrong:
    """Claims that a step is false which is true; without one, that some sentence of the reasoning is where it went wrong."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        steps = f"{reasoning}\n{answer}"
        true = [f"{each.left} = {each.right}" for each in equations(steps) if each.is_true]
        true = [statement for statement in true if can_be_quoted(task, statement)]
        if true:
            return f"{RETRY_ONLY} {step_is_wrong(true[choice_by_hash(len(true), task.task_id, steps)])}"
        sentences = [each.strip()[:MAX_QUOTED_CHARS] for each in _SENTENCE_END.split(steps) if each.strip()]
        sentences = [sentence for sentence in sentences if can_be_quoted(task, sentence)]
        if not sentences:
            return f"{RETRY_ONLY} You misread the problem: it asks for the opposite."
        return f"{RETRY_ONLY} You go wrong here: {sentences[choice_by_hash(len(sentences), task.task_id, steps)]}"
