"""The interface of critics, and what they share. Depends on no tool and no server."""

from __future__ import annotations

import hashlib
from typing import Protocol

from midthought.data.problems.problem_sets import SOLUTION_LABEL
from midthought.feedback.masking import mask_answer
from midthought.types import Task


class Critic(Protocol):
    """Gives feedback on a wrong answer."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        """What is wrong with `answer`, which `reasoning` led to. May raise ConnectionError or TimeoutError."""
        ...


async def masked_feedback(critic: Critic, task: Task, answer: str, reasoning: str) -> str:
    """Returns a critic's feedback with the task's answer masked."""
    return mask_answer(await critic.feedback(task, answer, reasoning), task)


def worked_solution(task: Task) -> str:
    """The solution that came with the problem; empty if there is none."""
    return str(task.labels.get(SOLUTION_LABEL) or "").strip()


def can_be_quoted(task: Task, words: str) -> bool:
    """Whether feedback may quote these words of the policy. A partly masked quotation would show which of several candidates is
    the answer, so such words are not quoted."""
    return mask_answer(words, task) == words


def choice_by_hash(number_of_choices: int, *texts: str) -> int:
    """A number from 0 that depends on the texts only, so that every process makes the same choice."""
    digest = hashlib.blake2b("\x1f".join(texts).encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest) % number_of_choices
