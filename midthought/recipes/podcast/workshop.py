"""One policy at work in one world: its rollouts, its reward, its supervised steps. Knows no stage and no run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from midthought.env.question import QuestionEnvironment, answer_reward
from midthought.env.thought import final_answer, matches
from midthought.inference.policy_engine import policy_engine
from midthought.inference.private_loop import PrivateLoop
from midthought.inference.rollout import RolloutParts, RolloutSettings
from midthought.inference.source import LocalSource
from midthought.inference.stream import EpisodeStream
from midthought.learning.learner import Learner
from midthought.learning.sft import bfloat16_is_fast, run_sft
from midthought.recipes.podcast.demonstrations import Demonstrator, Habits
from midthought.recipes.podcast.policy import instruction
from midthought.recipes.podcast.settings import PodcastConfig
from midthought.recipes.podcast.world import World
from midthought.text import Renderer
from midthought.tools.notations.in_thought import InThoughtNotation
from midthought.tools.schedule import Toolbox
from midthought.types import Trajectory


@dataclass(frozen=True)
class Workshop:
    """What every stage needs around a policy. The policy's weights change in place."""

    config: PodcastConfig
    world: World
    policy: Any
    renderer: Renderer
    notation: InThoughtNotation = field(default_factory=InThoughtNotation)

    @property
    def pad_token_id(self) -> int:
        return int(self.renderer.tokenizer.pad_token_id)

    @property
    def _end_tokens(self) -> list[str]:
        return [self.renderer.decode([token_id]) for token_id in sorted(self.renderer.eos_token_ids)]

    def is_right(self, trajectory: Trajectory) -> bool:
        truths = (trajectory.task.answer, *trajectory.task.aliases)
        return matches(final_answer(trajectory, self.renderer.decode, self._end_tokens), truths)

    def source(self, policy_version: int = 0, *, trained: Any = None) -> LocalSource:
        """The rollout loop over the present policy, in this process. The version counts the updates so far.

        `trained`: what a learner trains, the policy or the policy with its adapters. Then the engine is the one of
        `inference.backend`, and with `inference.partial_rollouts` episodes may outlive an iteration. Close the source after use.
        """
        inference, world = self.config.inference, self.world
        spoken = instruction(self.config)
        longest = max(
            len(self.renderer.prompt(task.messages(spoken))) for tasks in world.tasks.values() for task in tasks
        )
        engine = policy_engine(
            self.policy,
            trained,
            self.renderer,
            inference if trained is not None else inference.model_copy(update={"backend": "local"}),
            model_path=self.config.model.local_path,
            max_seq_len=longest + inference.max_tokens,
        )
        engine.policy_version = policy_version
        environment = QuestionEnvironment(answer_reward(self.config.reward, self.renderer.decode, self._end_tokens))
        parts = RolloutParts(
            engine=engine,
            renderer=self.renderer,
            notation=self.notation,
            toolbox=Toolbox(world.registry, timeout_seconds=inference.tool_timeout_seconds),
            messages=lambda task: task.messages(spoken),
            environment=lambda task: environment,
            settings=RolloutSettings.from_config(inference),
        )
        seed = self.config.training.seed
        if trained is None or not inference.partial_rollouts:
            return LocalSource(parts, engine, seed=seed)
        loop = PrivateLoop("midthought-rollout")
        stream = EpisodeStream.from_config(parts, loop, inference, seed=seed)
        return LocalSource(parts, engine, seed=seed, stream=stream, loop=loop)

    def supervise(
        self,
        learner: Learner,
        habits: Habits,
        start: int,
        num_steps: int,
        on_step: Callable[[int, Mapping[str, float]], None],
        deadline: float | None = None,
    ) -> None:
        settings = self.config.warmup
        demonstrator = Demonstrator(
            self.world.chunks["train"],
            self.renderer,
            self.notation,
            self.world.plan,
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
            mixed_precision=bfloat16_is_fast() if settings.mixed_precision is None else settings.mixed_precision,
            on_step=on_step,
            deadline=deadline,
        )
