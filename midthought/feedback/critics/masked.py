"""A critic's words with the ground truth masked out of them. Knows no critic by name."""

from __future__ import annotations

from midthought.feedback.critics.critic import Critic
from midthought.feedback.masking import mask_answer
from midthought.types import Task


class Masked:
    """Whatever the inner critic says, without the task's answer."""

    def __init__(self, critic: Critic) -> None:
        self.critic = critic

    async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
        return mask_answer(await self.critic.feedback(task, answer, reasoning), task)
