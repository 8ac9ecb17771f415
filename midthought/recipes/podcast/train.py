"""The podcast recipe: memory, questions, demonstrations, evaluation arms, control arm."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from midthought.errors import SettingsError
from midthought.recipes.pipeline import Demonstrate, RecipeRun, When, before_and_after
from midthought.recipes.podcast.demonstrations import CLEAN, Demonstrator, Habits
from midthought.recipes.podcast.evaluation import Arm, arms, run_arms, task_metrics
from midthought.recipes.podcast.policy import instruction, make_small_policy
from midthought.recipes.podcast.settings import PodcastConfig, WarmupSection
from midthought.recipes.podcast.tasks import PodcastData, PodcastTasks, prepare_data, read_recipe_transcripts
from midthought.recipes.stages import load_policy_and_tokenizer, supervised_learner
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.types import Trajectory

_TABLE = (
    ("exact match, memory needed", "exact_match"),
    ("… sampled at temperature 1", "sampled_exact_match"),
    ("… oracle results", "oracle.exact_match"),
    ("… results shuffled", "shuffled.exact_match"),
    ("… tool off", "tool_off.exact_match"),
    ("exact match, answer in the prompt", "no_memory.exact_match"),
    ("calls if memory is needed", "call_rate_needed"),
    ("calls if memory is not needed", "call_rate_needless"),
)


@dataclass
class PodcastRun(RecipeRun):
    """One run of the podcast recipe."""

    config: PodcastConfig
    data: PodcastData = field(init=False)
    tasks: PodcastTasks = field(init=False)

    rl_stage = "ppo"
    rl_title = "PPO"

    # -- data and demonstrations -------------------------------------------------------------------------------

    def _prepare(self) -> PodcastTasks:
        if self.stage == "rl" and self.from_path is None and not self.resume:
            raise SettingsError("--stage rl needs a finished warm-up: give --from with a run folder or a checkpoint")
        self.data = prepare_data(self.config, read_recipe_transcripts(self.config), self.path)
        if self.stage != "sft":
            self._arms("after", lambda reason: self.console.note(f"  Left out of the evaluation: {reason}"))
        return PodcastTasks(self.config, self.data)

    def _build_data(self) -> None:
        with (
            self.stages.progress.timed("memory"),
            self.console.stage("Memory and questions", unit="chunks embedded") as bar,
        ):
            report = self.data.build(self.path, bar.follow)
        if report.precision:
            self.console.note(f"  Chunks are embedded in {report.precision}")
        tasks = self.data.tasks
        self.console.note(
            f"  {sum(map(len, self.data.chunks.values())):,} chunks of the episodes "
            f"({report.num_added:,} new); questions: {len(tasks['train']):,} for training, "
            f"{len(tasks['test']):,} that need the memory and {len(tasks['test_no_memory']):,} that do not for the test"
        )

    def _make_policy(self) -> tuple[Any, Any]:
        return make_small_policy(self.config, self.data.chunks["train"])

    @property
    def _supervised(self) -> WarmupSection:
        return self.config.warmup

    def _demonstrations(self, habits: Habits | None = None) -> Demonstrate:
        settings = self.config.warmup
        own = Habits(settings.ask_short, settings.give_up, settings.misread, settings.needless_ask)
        demonstrator = Demonstrator(
            self.data.chunks["train"],
            self.tasks.renderer,
            InThoughtFormat(),
            self.data.plan,
            habits=habits or own,
            made_up_share=settings.made_up_share,
            random_text_share=settings.random_text_share,
            num_results=self.config.memory.k,
            instruction=instruction(self.config),
        )
        return lambda step: demonstrator.batch(self.config.training.seed, step, settings.batch_tokens)

    # -- evaluation --------------------------------------------------------------------------------------------

    def _reinforce_and_compare(self) -> None:
        super()._reinforce_and_compare()
        if self.config.evaluation.control_arm and self.stage == "all":
            self.stages.once("control", self._control)

    def _arms(self, when: When, on_left_out: Callable[[str], None] = lambda reason: None) -> list[Arm]:
        settings, seed = self.config.evaluation, self.config.training.seed
        return arms(self.data, after=when == "after", sampled=settings.sampled, seed=seed, on_left_out=on_left_out)

    def _evaluate(self, when: When) -> dict[str, Any]:
        todo = self._arms(when)
        num_episodes = sum(len(arm.tasks) for arm in todo)
        with (
            closing(self._rollouts(when)) as rollouts,
            self.console.stage(f"Evaluation {when}", total=num_episodes, unit="episodes") as bar,
        ):

            def on_arm(arm: Arm, done: list[Trajectory]) -> None:
                self._add_trajectories(done, f"{when}.{arm.name}".rstrip("."))
                self.stages.stop.check()

            metrics = run_arms(rollouts, todo, self.tasks.is_right, on_arm, lambda _: bar.advance(1))
        found = {f"{when}.{name}": value for name, value in metrics.items()}
        is_first = when == "before" or self.stage == "evaluate"
        return found | (task_metrics(self.data) if is_first else {})

    def _control(self) -> dict[str, Any]:
        """Trains the same initial model on clean demonstrations for as long as warm-up and PPO took."""
        source = self.config.model.local_path
        policy, _ = load_policy_and_tokenizer(source, self.config.model) if source else self._make_policy()
        spent = self.stages.progress.seconds
        seconds = spent["warmup"] + spent["ppo"]
        deadline = time.monotonic() + seconds
        num_steps = round(self.config.warmup.num_steps * seconds / spent["warmup"])
        learner = supervised_learner(policy, self.config, self.config.warmup, num_steps)
        self._supervise(
            "Control arm (SFT only)",
            "control",
            learner,
            self._demonstrations(CLEAN),
            0,
            num_steps,
            deadline=deadline,
        )
        with closing(self.tasks.rollouts(policy)) as rollouts:
            done = rollouts.evaluate(self.data.tasks["test"])
        return {
            "control.exact_match": sum(map(self.tasks.is_right, done)) / len(done),
            "control.num_steps": learner.num_steps,
        }

    # -- the end ------------------------------------------------------------------------------------------------

    def _metrics(self) -> dict[str, Any]:
        metrics = super()._metrics()
        return {**metrics, "control.exact_match": metrics.get("control.exact_match")}

    def _last_table(self, summary: Mapping[str, Any]) -> None:
        rows = before_and_after(summary, _TABLE)
        if rows:
            has_before = "before.exact_match" in summary
            headings = ("", "before PPO", "after PPO" if has_before else "this policy")
            shown = rows if has_before else [(title, after) for title, _, after in rows]
            self.console.table("Held-out episodes", headings if has_before else headings[::2], shown)
