"""The feedback recipe: problems, demonstrations, evaluation arms, control arms."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from midthought.checks.examination import Setup
from midthought.checks.registry import Finding, check
from midthought.errors import SettingsError
from midthought.feedback.commands import check_feedback
from midthought.recipes.control_arms import RFT_ARMS, ControlArm, clean_arm
from midthought.recipes.evaluation import EvaluationArm
from midthought.recipes.feedback.demonstrations import (
    Demonstrator,
    make_small_policy,
    read_conversations,
    without_held_out,
)
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.feedback.tasks import (
    DIFFICULTY_LABEL,
    RETRY_ONLY,
    FeedbackTasks,
    Parts,
    feedback_metrics,
    prepare_problems,
)
from midthought.recipes.recipe import run_of
from midthought.recipes.run import RecipeRun
from midthought.rollout.episode_source import EpisodeSource
from midthought.trainer.demonstrations import DemonstrationReader, ShuffledDemonstrations, StepDemonstrations
from midthought.types import Trajectory

_UNTAUGHT = (
    "Warning: this run has no warm-up. A policy without demonstrations of the tool hardly ever calls it, and reinforcement "
    "learning can only reinforce calls that occur; run --stage sft first, or --stage all."
)

_RETRY_ONLY = ControlArm(
    name="retry_only",
    title="RL with feedback that only says whether the answer is right",
    changes={"feedback": {"critic": RETRY_ONLY}},
)
_CLEAN = {"ask_hard": 1.0, "ask_easy": 0.0, "ask_again": 1.0, "practice_share": 0.0}
"""Calls about every hard problem until the answer is confirmed, about no easy one."""


@check("critics", "check")
def critics(setup: Setup) -> Iterator[Finding]:
    """The servers of the critic answer with feedback."""
    settings = setup.config.feedback if isinstance(setup.config, FeedbackRecipeConfig) else None
    for found in check_feedback(settings) if settings is not None else ():
        if found.remedy:
            yield Finding(f"{found.what}: {found.words}", found.remedy, found.server, "stop")


@dataclass
class FeedbackRun(RecipeRun):
    """One run of the feedback recipe."""

    config: FeedbackRecipeConfig
    problems: Parts = field(init=False)
    tasks: FeedbackTasks = field(init=False)

    sft_section = "sft"
    control_arms = (*RFT_ARMS, _RETRY_ONLY, clean_arm("sft", _CLEAN))

    def prepare(self) -> None:
        if self.stage in ("sft", "all") and self.config.problems.dataset != "arithmetic" and not self.config.sft.source:
            raise SettingsError(
                f"problems.dataset={self.config.problems.dataset!r} needs demonstrations: set sft.source to a file that "
                "`midthought feedback convert` wrote, or begin with --stage rl"
            )
        if self.stage == "rl" and (self.from_path is None or run_of(self.from_path) is None):
            self.console.note(_UNTAUGHT)
        self.problems = prepare_problems(self.config)

    def make_tasks(self, config: FeedbackRecipeConfig) -> FeedbackTasks:  # type: ignore[override]
        return FeedbackTasks(config, self.problems)

    def make_policy(self) -> tuple[Any, Any]:
        return make_small_policy(self.config.model, self.config.training.seed)

    def demonstrations(self, config: FeedbackRecipeConfig) -> StepDemonstrations:  # type: ignore[override]
        seed = config.training.seed
        held_out = [task for part in ("validation", "test") for task in self.tasks.parts[part]]
        if config.sft.source is not None:
            reader = DemonstrationReader(self.tasks.prompts, self.tasks.renderer, sys.maxsize)
            kept = without_held_out(given := read_conversations(config.sft.source), held_out)
            if num_left_out := len(given) - len(kept):
                self.console.note(f"  {num_left_out} of {len(given)} conversations left out: held-out problems")
            read = reader.read(kept, self.tasks.stream)
            return ShuffledDemonstrations(read, config.sft.batch_tokens, f"converted-{seed}")
        return Demonstrator(
            renderer=self.tasks.renderer,
            system=config.system_messages,
            settings=config.sft,
            hard_share=config.problems.hard_share,
            held_out={task.prompt for task in held_out},
            max_asks=min(config.inference.max_turns - 1, config.inference.max_tool_calls_per_cot),
            seed=seed,
        )

    def evaluate(self, when: str, source: EpisodeSource) -> dict[str, Any]:
        tasks, evaluation = self.tasks.parts["test"], self.config.evaluation
        arms = [EvaluationArm("", tasks)]
        if evaluation.sampled:
            arms.append(EvaluationArm("sampled", tasks, temperature=1.0))
        if when != "before":
            arms += [EvaluationArm(critic, tasks, self.tasks.executor(critic)) for critic in evaluation.arms]
        return {"num_questions": len(tasks), **self.run_arms(when, source, arms, self._metrics_of)}

    def _metrics_of(self, arm: EvaluationArm, done: Sequence[Trajectory]) -> dict[str, float]:
        episodes, max_rounds = self.tasks.rounds(done), self.config.inference.max_turns
        metrics = feedback_metrics(episodes, max_rounds)
        if arm.name:
            return {f"{arm.name}.{key}": value for key, value in metrics.items()}
        levels = [str(each.task.labels.get(DIFFICULTY_LABEL, "")) for each in done]
        for level in sorted({*levels} - {""}):
            of_level = [rounds for rounds, own in zip(episodes, levels, strict=True) if own == level]
            found = feedback_metrics(of_level, max_rounds)
            metrics |= {f"{key}_of.{level}": found[key] for key in ("first_try", "exact_match")}
        return metrics
