"""Critics that know no mathematics: `none`, `outcome` and `generic`."""

from __future__ import annotations

from midthought.feedback.answers import CHECKS, extract
from midthought.feedback.critics.critic import can_be_quoted, choice_by_hash
from midthought.feedback.problems.fields import DATASET_LABEL
from midthought.feedback.prompts import RETRY_ONLY
from midthought.types import Task

MAX_QUOTED_CHARS = 200

ADVICE = (
    "Read the problem once more and write down what is given and what is asked.",
    "Do every step of the calculation again, slowly, and check each one before you go on.",
    "Check that you have used all that the problem says, and nothing that it does not say.",
    "Try to reach the result by another way and compare.",
)


class RetryOnly:
    """`none`: the answer was wrong, and not a word more; the arm that every gain from feedback is compared with."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        return RETRY_ONLY


class Outcome:
    """`outcome`: the answer was wrong, and what was taken for it where the task's data set says how answers are found."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        dataset = str(task.labels.get(DATASET_LABEL, ""))
        if dataset not in CHECKS:
            return RETRY_ONLY
        said = extract(dataset, answer)
        if said is None:
            return f"{RETRY_ONLY} No final answer was found in it."
        is_short = len(said) <= MAX_QUOTED_CHARS
        return f"{RETRY_ONLY} This was judged: {said}" if is_short and can_be_quoted(task, said) else RETRY_ONLY


class Generic:
    """`generic`: advice that fits every problem, so it says nothing of this one."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        return f"{RETRY_ONLY} {ADVICE[choice_by_hash(len(ADVICE), task.task_id, answer, reasoning)]}"
