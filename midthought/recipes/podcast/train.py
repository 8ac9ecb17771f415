"""The podcast run: memory, questions, warm-up, PPO, evaluation, control arm. Holds no mathematics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from midthought.config import settled
from midthought.errors import SettingsError
from midthought.evaluation.metrics import call_rate
from midthought.learning.learner import Learner
from midthought.recipes.pipeline import OnStep, RecipeRun, When, before_and_after
from midthought.recipes.podcast.demonstrations import CLEAN, Habits
from midthought.recipes.podcast.evaluation import Arm, arms, run_arms, task_figures
from midthought.recipes.podcast.policy import make_small_policy
from midthought.recipes.podcast.settings import PodcastConfig
from midthought.recipes.podcast.tasks import PodcastData, prepare_data, read_recipe_transcripts
from midthought.recipes.podcast.workshop import Workshop
from midthought.recipes.stages import load_policy_and_tokenizer, supervised_learner
from midthought.rollout.local_rollouts import Rollouts
from midthought.tokenization import Renderer
from midthought.types import Task, Trajectory

_TABLE = (
    ("exact match, memory needed", "exact_match"),
    ("… sampled at temperature 1", "sampled_exact_match"),
    ("… oracle results", "oracle.exact_match"),
    ("… results shuffled", "shuffled.exact_match"),
    ("… tool off", "tool_off.exact_match"),
    ("exact match, answer in the prompt", "no_memory.exact_match"),
    ("calls where memory is needed", "call_rate_needed"),
    ("calls where it is not", "call_rate_needless"),
)


@dataclass
class PodcastRun(RecipeRun):
    """One run of the podcast recipe."""

    config: PodcastConfig
    data: PodcastData = field(init=False)
    workshop: Workshop = field(init=False)

    rl_stage = "ppo"
    rl_title = "PPO"

    # -- before anything learns --------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self.stage == "rl" and self.from_path is None and not self.resume:
            raise SettingsError("--stage rl needs a finished warm-up: give --from with a run folder or a checkpoint")
        self.data = prepare_data(self.config, read_recipe_transcripts(self.config), self.path)
        if self.stage != "sft":
            self._arms("after", lambda reason: self.console.note(f"  Left out of the evaluation: {reason}"))

    def _find_policy(self) -> None:
        self._build_data()
        super()._find_policy()

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

    def _begin(self) -> tuple[Any, Any]:
        if self.config.model.local_path:
            return load_policy_and_tokenizer(self.config.model.local_path, self.config.model.weights_dtype)
        return make_small_policy(self.config, self.data.chunks["train"])

    def _make_workshop(self, policy: Any, renderer: Renderer) -> Workshop:
        return Workshop(self.config, self.data, policy, renderer)

    @property
    def _train_tasks(self) -> Sequence[Task]:
        return self.data.tasks["train"]

    @property
    def _num_shown(self) -> int:
        return self.config.evaluation.num_shown

    # -- the stages --------------------------------------------------------------------------------------------

    def _num_sft_steps(self) -> int:
        return self.config.warmup.num_steps

    def _sft_learner(self, policy: Any, num_steps: int) -> Learner:
        """Of demonstrations, for the warm-up and the control arm."""
        warmup = self.config.warmup
        return supervised_learner(
            policy,
            self.config.model,
            self.config.training,
            learning_rate=settled(warmup.learning_rate),
            warmup_steps=warmup.warmup_steps,
            num_steps=num_steps,
        )

    def _teach(self, learner: Learner, start: int, on_step: OnStep) -> None:
        settings = self.config.warmup
        habits = Habits(settings.ask_short, settings.give_up, settings.misread, settings.needless_ask)
        self._supervise(self.workshop, learner, habits, start, settings.num_steps, on_step)

    def _supervise(self, workshop: Workshop, *steps: Any, deadline: float | None = None) -> None:
        mixed_precision = self._is_mixed(self.config.warmup.mixed_precision)
        workshop.supervise(
            *steps, mixed_precision=mixed_precision, on_precision=self._note_precision, deadline=deadline
        )

    def _reinforce_and_compare(self) -> None:
        super()._reinforce_and_compare()
        if self.config.evaluation.control_arm and self.stage == "all":
            self.stages.once("control", self._control)

    def _arms(self, when: When, on_left_out: Callable[[str], None] = lambda reason: None) -> list[Arm]:
        settings, seed = self.config.evaluation, self.config.training.seed
        return arms(self.data, after=when == "after", sampled=settings.sampled, seed=seed, on_left_out=on_left_out)

    def _evaluate(self, when: When) -> dict[str, Any]:
        source = self.workshop.source(self._num_iters if when == "after" else 0)
        todo = self._arms(when)
        num_episodes = sum(len(arm.tasks) for arm in todo)
        with self.console.stage(f"Evaluation {when}", total=num_episodes, unit="episodes") as bar:

            def on_arm(arm: Arm, done: list[Trajectory]) -> None:
                self._keep_trajectories(done, f"{when}.{arm.name}".rstrip("."))
                self.stages.stop.check()

            figures = run_arms(source, todo, self.workshop.is_right, on_arm, lambda _: bar.advance(1))
        found = {f"{when}.{name}": value for name, value in figures.items()}
        is_first = when == "before" or self.stage == "evaluate"
        return found | (task_figures(self.data) if is_first else {})

    def _control(self) -> dict[str, Any]:
        """The same model from the same start, taught by clean demonstrations for as long as warm-up and PPO took."""
        policy, _ = self._begin()
        workshop = replace(self.workshop, policy=policy)
        seconds = self.stages.progress.seconds["warmup"] + self.stages.progress.seconds["ppo"]
        deadline = time.monotonic() + seconds
        num_steps = round(self.config.warmup.num_steps * seconds / self.stages.progress.seconds["warmup"])
        learner = self._sft_learner(policy, num_steps)
        with self.console.stage("Control arm (SFT only)", total=num_steps, unit="steps") as bar:

            def on_step(step: int, metrics: Mapping[str, float]) -> None:
                self.run.log("control", step, metrics)
                bar.advance(1, loss=metrics["loss"])
                self.stages.stop.check()

            self._supervise(workshop, learner, CLEAN, 0, num_steps, on_step, deadline=deadline)
        done = workshop.source().evaluate(self.data.tasks["test"])
        return {
            "control.exact_match": sum(map(self.workshop.is_right, done)) / len(done),
            "control.num_steps": learner.num_steps,
        }

    def _validate(self, source: Rollouts, iteration: int) -> bool:
        """Log the held-out figures; True where the exact match is the best so far."""
        done = source.evaluate(self.data.tasks["validation"])
        needed = [t for t in done if t.task.labels.get("needs_memory", True)]
        needless = [t for t in done if not t.task.labels.get("needs_memory", True)]
        metrics = {
            "exact_match": sum(map(self.workshop.is_right, done)) / len(done),
            "call_rate_needed": call_rate(needed),
        }
        if needless:
            metrics["call_rate_needless"] = call_rate(needless)
        self.run.log("validation", iteration, metrics)
        return self.stages.note_validation(metrics["exact_match"], iteration)

    # -- what is told at the end -------------------------------------------------------------------------------

    def _figures(self) -> dict[str, Any]:
        figures = super()._figures()
        return {**figures, "control.exact_match": figures.get("control.exact_match")}

    def _last_table(self, summary: Mapping[str, Any]) -> None:
        rows = before_and_after(summary, _TABLE)
        if rows:
            has_before = "before.exact_match" in summary
            headings = ("", "before PPO", "after PPO" if has_before else "this policy")
            shown = rows if has_before else [(title, after) for title, _, after in rows]
            self.console.table("Held-out episodes", headings if has_before else headings[::2], shown)
