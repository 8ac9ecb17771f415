"""What a critic is, what of a task it may look at and what of an answer it may quote. Knows no tool and no server."""

from __future__ import annotations

import hashlib
from typing import Protocol

from midthought.feedback.masking import mask_answer
from midthought.feedback.problems.fields import SOLUTION_LABEL
from midthought.types import Task


class Critic(Protocol):
    """Says something of an answer that is wrong."""

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        """What is wrong with `answer`, to which `reasoning` led. It may raise ConnectionError or TimeoutError."""
        ...


def worked_solution(task: Task) -> str:
    """The solution that came with the problem; empty where none did."""
    return str(task.labels.get(SOLUTION_LABEL) or "").strip()


def can_be_quoted(task: Task, words: str) -> bool:
    """Whether the policy's own words may stand in feedback. A quotation that is masked in part would tell which of several
    candidates is the answer, so such words are not quoted at all."""
    return mask_answer(words, task) == words


def choice_by_hash(number_of_choices: int, *texts: str) -> int:
    """The same number for the same texts, in every process: what a critic draws, it draws once for all."""
    digest = hashlib.blake2b("\x1f".join(texts).encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest) % number_of_choices
