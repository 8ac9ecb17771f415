"""One policy at work on the problems: its rollouts under a critic, its reward, its demonstrations. Knows no stage."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from midthought.env.math_process import NUM_WORKERS
from midthought.feedback.answers import task_is_right
from midthought.feedback.tool import FeedbackTool
from midthought.recipes.feedback.conversation import CALL_FORMAT, system_messages
from midthought.recipes.feedback.converted import ConvertedDemonstrations
from midthought.recipes.feedback.demonstrations import Demonstrator, Writing
from midthought.recipes.feedback.problems import Parts
from midthought.recipes.feedback.reward import FeedbackEnvironment
from midthought.recipes.feedback.rounds import Round, RoundReader, Verdicts
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.sources import recipe_source
from midthought.rollout.local_rollouts import Rollouts
from midthought.tokenization import Renderer
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Trajectory


@dataclass(frozen=True)
class Workshop:
    """What every stage needs around a policy. The policy's weights change in place."""

    config: FeedbackRecipeConfig
    problems: Parts
    policy: Any
    renderer: Renderer

    @functools.cached_property
    def writing(self) -> Writing:
        """How the policy's conversations begin and how its calls are written."""
        return Writing(self.renderer, CALL_FORMAT, system_messages(self.config))

    @property
    def pad_token_id(self) -> int:
        tokenizer = self.renderer.tokenizer
        return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)

    @functools.cached_property
    def reader(self) -> RoundReader:
        """Reads what was answered, asked and told in an episode; what it has judged once it knows."""
        return RoundReader(CALL_FORMAT, Verdicts(task_is_right))

    def rounds(self, done: Sequence[Trajectory]) -> list[list[Round]]:
        """The rounds of every episode. What nobody judged here (episodes of Ray's workers) is judged side by side."""
        with ThreadPoolExecutor(NUM_WORKERS) as pool:
            return list(pool.map(self.reader, done))

    def is_right(self, trajectory: Trajectory) -> bool:
        """Whether the last answer is right."""
        rounds = self.reader(trajectory)
        return bool(rounds) and rounds[-1].is_right

    def executor(self, critic: str | None = None) -> ToolExecutor:
        """The tool with this critic instead of the settings' own."""
        settings = self.config.feedback
        if critic is not None:
            settings = settings.model_copy(update={"critic": critic})
        registry = ToolRegistry()
        registry.register(FeedbackTool.from_settings(settings))
        return ToolExecutor(registry, timeout_seconds=self.config.inference.tool_timeout_seconds)

    def source(self, policy_version: int = 0, *, trained: Any = None) -> Rollouts:
        """The rollout loop over the present policy; the version counts the updates so far, the rest is `recipe_source`'s."""
        system = self.writing.system
        return recipe_source(
            self.policy,
            self.renderer,
            self.config.inference,
            self.config.ray,
            call_format=CALL_FORMAT,
            executor=self.executor(),
            messages=lambda task: task.messages(*system),
            environment=FeedbackEnvironment(self.reader, self.config.reward),
            tasks=(task for tasks in self.problems.values() for task in tasks),
            model_path=self.config.model.local_path,
            seed=self.config.training.seed,
            policy_version=policy_version,
            trained=trained,
        )

    def demonstrations(self) -> Callable[[int], Sequence[Trajectory]]:
        """Step -> the demonstrations of that step. Raises DataError, SettingsError."""
        config, seed = self.config, self.config.training.seed
        if config.sft.source is not None:
            converted = ConvertedDemonstrations.read(config.sft.source, self.writing, config.sft.batch_tokens, seed)
            return converted.batch
        held_out = {task.prompt for part in ("validation", "test") for task in self.problems[part]}
        demonstrator = Demonstrator(
            self.writing,
            config.sft,
            hard_share=config.problems.hard_share,
            held_out=held_out,
            max_asks=min(config.inference.max_turns - 1, config.inference.max_tool_calls_per_cot),
        )
        return lambda step: demonstrator.batch(seed, step)
