"""The tool `get_feedback`: asks a critic what is wrong with an answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from midthought.data.tasks import DATASET_LABEL
from midthought.env.answers import CHECKS, task_is_right
from midthought.errors import EpisodeError, SettingsError, near_names
from midthought.feedback.critics import Critic, make_critic, masked_feedback
from midthought.feedback.settings import (
    DEFINITION,
    RIGHT_ANSWER,
    FeedbackSettings,
    read_feedback_settings,
    wrong_answer_result,
)
from midthought.tools.definition import Tool, ToolOutput
from midthought.types import Task

SPARE_SECONDS = 30.0
"""Time for the answer check (some seconds for mathematics) and masking, in addition to the servers' time."""


class FeedbackTool(Tool):
    """`get_feedback(current_answer, reasoning)` with one critic. `for_task` returns the instance for the episodes of one task.

    A right answer gets `settings.RIGHT_ANSWER` without asking the critic. `metadata` of the result: `is_right`, `critic`.
    The feedback of every critic is masked.

    Args:
        critic: gives the feedback on wrong answers.
        name: the critic's name in `metadata`.
        dataset: the data set of tasks without the label `dataset`. Empty: their answers are judged by their truth.
        timeout_seconds: time limit of one call; None: the tool executor's limit.
    """

    definition = DEFINITION

    def __init__(
        self, critic: Critic, *, name: str = "", dataset: str = "", timeout_seconds: float | None = None
    ) -> None:
        if dataset and dataset not in CHECKS:
            raise SettingsError(f"unknown data set {dataset!r}. {near_names(dataset, CHECKS)}")
        self.timeout_seconds = timeout_seconds
        self._critic = critic
        self._name = name or type(critic).__name__
        self._dataset = dataset
        self._task: Task | None = None

    @classmethod
    def from_settings(cls, settings: FeedbackSettings) -> Self:
        """The tool with the critic of the settings, and a time limit that leaves time for every server. Raises SettingsError."""
        return cls(
            make_critic(settings),
            name=settings.critic,
            dataset=settings.dataset,
            timeout_seconds=settings.timeout_seconds * max(len(settings.servers), 1) + SPARE_SECONDS,
        )

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """The same from a YAML file (`read_feedback_settings`)."""
        return cls.from_settings(read_feedback_settings(path))

    def for_task(self, task: Task) -> Self:
        """The instance that answers the calls of this task's episodes."""
        if self._dataset and DATASET_LABEL not in task.labels:
            task = replace(task, labels={**task.labels, DATASET_LABEL: self._dataset})
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__, _task=task)
        return bound

    async def execute(self, *_: Any, current_answer: str, reasoning: str = "") -> ToolOutput:
        """Judges the answer and, if it is wrong, asks the critic.

        Raises ValueError, which the model reads, for an empty answer; ConnectionError or TimeoutError if the critic cannot be
        reached; EpisodeError if the instance has no task.
        """
        if self._task is None:
            raise EpisodeError(
                "get_feedback does not know the episode's task; call the instance that for_task(task) returns"
            )
        if not current_answer.strip():
            raise ValueError("current_answer is empty")
        if await asyncio.to_thread(task_is_right, self._task, current_answer):  # it may block
            return ToolOutput(RIGHT_ANSWER, {"is_right": True, "critic": self._name})
        words = await masked_feedback(self._critic, self._task, current_answer, reasoning)
        return ToolOutput(wrong_answer_result(words), {"is_right": False, "critic": self._name})
