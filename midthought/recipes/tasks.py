"""Tasks of a recipe: questions by part, the tool, the reward, and the start of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from midthought.config import RecipeConfig
from midthought.rollout.episode import EpisodeEnvironment
from midthought.rollout.local_rollouts import Rollouts
from midthought.rollout.rollout_batch import ShuffledTasks
from midthought.tokenization import Renderer
from midthought.trainer.rollouts import PromptBuilder, open_sources
from midthought.trainer.tasks import TrainingTasks
from midthought.types import Task


class RecipeTasks(TrainingTasks):
    """Questions by part (`train`, `validation`, `test`, …), all with one environment."""

    has_held_out = True
    best_by = "exact_match"
    renderer: Renderer

    def __init__(
        self,
        config: RecipeConfig,
        parts: Mapping[str, Sequence[Task]],
        prompts: PromptBuilder,
        environment: EpisodeEnvironment,
    ) -> None:
        self.config, self.parts, self.prompts, self.environment = config, parts, prompts, environment
        self.num_tasks = len(parts["train"])
        self.stream = ShuffledTasks(parts["train"], config.training.seed)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state that another process needs to run episodes: the environment, not the tasks."""
        return {"environment": self.environment}

    def texts(self) -> Iterable[str]:
        return [f"{task.prompt}\n{task.answer}" for task in self.parts["train"]]

    def open(self, renderer: Renderer) -> None:
        self.renderer = renderer

    def episode(self, task: Task) -> EpisodeEnvironment:
        return self.environment

    held_out_episode = episode

    def held_out(self, count: int) -> list[Task]:
        return list(self.parts["validation"])

    def longest_prompt(self, num_tokens: Callable[[Task], int]) -> int:
        return max(num_tokens(task) for tasks in self.parts.values() for task in tasks)

    def rollouts(self, policy: Any, policy_version: int = 0) -> Rollouts:
        """Runs evaluation episodes with the policy's current weights, in this process. Close it after use."""
        inference = self.config.inference.model_copy(update={"backend": "local"})
        ray = self.config.ray.model_copy(update={"use_ray": False})
        config = self.config.model_copy(update={"inference": inference, "ray": ray})
        engine, source, _ = open_sources(policy, None, self.renderer, self.prompts, self, config)
        engine.policy_version = policy_version
        return source
