"""One policy at work on one set of tasks: its rollouts, its reward, its supervised steps. Knows no stage and no run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from midthought.env.question import QuestionEnvironment, answer_reward
from midthought.env.reasoning import final_answer, matches
from midthought.learning.learner import Learner
from midthought.learning.sft import run_sft
from midthought.precision import PrecisionChoice
from midthought.recipes.podcast.demonstrations import Demonstrator, Habits
from midthought.recipes.podcast.policy import instruction
from midthought.recipes.podcast.settings import PodcastConfig
from midthought.recipes.podcast.tasks import PodcastData
from midthought.recipes.sources import recipe_source
from midthought.rollout.local_rollouts import Rollouts
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.executor import ToolExecutor
from midthought.types import Trajectory


@dataclass(frozen=True)
class Workshop:
    """What every stage needs around a policy. The policy's weights change in place."""

    config: PodcastConfig
    data: PodcastData
    policy: Any
    renderer: Renderer
    call_format: InThoughtFormat = field(default_factory=InThoughtFormat)

    @property
    def pad_token_id(self) -> int:
        return int(self.renderer.tokenizer.pad_token_id)

    @property
    def _end_tokens(self) -> list[str]:
        return [self.renderer.decode([token_id]) for token_id in sorted(self.renderer.eos_token_ids)]

    def is_right(self, trajectory: Trajectory) -> bool:
        truths = (trajectory.task.answer, *trajectory.task.aliases)
        return matches(final_answer(trajectory, self.renderer.decode, self._end_tokens), truths)

    def source(self, policy_version: int = 0, *, trained: Any = None) -> Rollouts:
        """The rollout loop over the present policy; the version counts the updates so far, the rest is `recipe_source`'s."""
        spoken = instruction(self.config)
        return recipe_source(
            self.policy,
            self.renderer,
            self.config.inference,
            self.config.ray,
            call_format=self.call_format,
            executor=ToolExecutor(self.data.registry, timeout_seconds=self.config.inference.tool_timeout_seconds),
            messages=lambda task: task.messages(spoken),
            environment=QuestionEnvironment(answer_reward(self.config.reward, self.renderer.decode, self._end_tokens)),
            tasks=(task for tasks in self.data.tasks.values() for task in tasks),
            model_path=self.config.model.local_path,
            seed=self.config.training.seed,
            policy_version=policy_version,
            trained=trained,
        )

    def supervise(
        self,
        learner: Learner,
        habits: Habits,
        start: int,
        num_steps: int,
        on_step: Callable[[int, Mapping[str, float]], None],
        *,
        mixed_precision: bool | None,
        on_precision: Callable[[PrecisionChoice], None],
        deadline: float | None = None,
    ) -> None:
        """`run_sft` on demonstrations with these habits."""
        settings = self.config.warmup
        demonstrator = Demonstrator(
            self.data.chunks["train"],
            self.renderer,
            self.call_format,
            self.data.plan,
            habits=habits,
            made_up_share=settings.made_up_share,
            random_text_share=settings.random_text_share,
            num_results=self.config.memory.k,
            instruction=instruction(self.config),
        )
        run_sft(
            learner,
            lambda step: demonstrator.batch(self.config.training.seed, step, settings.batch_tokens),
            start=start,
            num_steps=num_steps,
            pad_token_id=self.pad_token_id,
            mixed_precision=mixed_precision,
            on_step=on_step,
            on_precision=on_precision,
            deadline=deadline,
        )
