"""The main job: problems, warm-up, reinforcement learning, evaluation, report. Composes the rooms; holds no mathematics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from midthought.errors import SettingsError
from midthought.inference.source import Source
from midthought.learning.harvest import ShuffledTasks
from midthought.learning.ppo import run_ppo
from midthought.learning.ranked import AnyLearner
from midthought.learning.sft import bfloat16_is_fast, run_sft
from midthought.learning.translate import ppo_plan
from midthought.pretrained import placed
from midthought.recipes.beginnings import run_of
from midthought.recipes.feedback.arithmetic import DIFFICULTY_LABEL
from midthought.recipes.feedback.evaluation import feedback_figures, figures_by_label, gains
from midthought.recipes.feedback.policy import make_small_policy
from midthought.recipes.feedback.problems import Parts, prepare_problems
from midthought.recipes.feedback.settings import FeedbackRecipeConfig
from midthought.recipes.feedback.workshop import Workshop
from midthought.recipes.progress import RunProgress
from midthought.recipes.stages import Stages, find_policy, load_policy_and_tokenizer, supervised_learner
from midthought.report.console import Console
from midthought.report.html import write_report
from midthought.report.run_folder import RunFolder
from midthought.report.trajectory_row import trajectory_row
from midthought.text import Renderer
from midthought.trainer.episodes import restore_stream, stream_state
from midthought.trainer.learners import choose_learner
from midthought.trainer.rollouts import check_source
from midthought.types import RolloutData, Trajectory

Stage = Literal["sft", "rl", "all", "evaluate"]

_UNTAUGHT = (
    "Warning: no warm-up came before this. A policy that was never shown the tool does not know that it can call it, and "
    "reinforcement learning can only strengthen what is tried now and then; run --stage sft first, or --stage all."
)

_TABLE = (
    ("right at the end", "exact_match"),
    ("right at the first try", "first_try"),
    ("… with retries only", "none.exact_match"),
    ("… with wrong feedback", "wrong.exact_match"),
    ("asks when wrong", "call_rate_needed"),
    ("asks when right", "call_rate_needless"),
    ("goes on after being told right", "goes_on_after_right"),
    ("wrong → right", "wrong_to_right"),
    ("right → wrong", "right_to_wrong"),
    ("still wrong", "still_wrong"),
)


@dataclass
class FeedbackRun:
    """One run of the recipe in its folder. `train` goes through the stages; what is done is not done again."""

    config: FeedbackRecipeConfig
    path: Path
    console: Console
    stage: Stage = "all"
    from_path: Path | None = None
    resume: bool = False
    run: RunFolder = field(init=False)
    stages: Stages = field(init=False)
    problems: Parts = field(init=False)
    workshop: Workshop = field(init=False)

    def train(self) -> dict[str, Any]:
        """Run every stage that is not done; the summary. KeyboardInterrupt goes through once everything is saved."""
        self._open()
        with self.stages.stop, self.run:
            self._find_policy()
            if self.stage == "evaluate":
                self.stages.once("after", lambda: self._evaluate("after"))
                return self._report()
            self.stages.once("warmup", self._take_over if self.stage == "rl" else self._warm_up)
            if self.stage != "sft":
                self.stages.once("before", lambda: self._evaluate("before"))
                self.stages.once("rl", self._reinforce)
                self.stages.once("after", lambda: self._evaluate("after"))
            return self._report()

    # -- the stages --------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Check everything that can be wrong with the input, before anything is written."""
        self.run = RunFolder(self.path, wandb_project=self.config.checkpoint.wandb_project)
        progress = RunProgress(self.run)
        self.stages = Stages(self.run, progress, self.config.checkpoint, self.resume)
        if self.stage == "evaluate" and not (self.from_path or self.config.model.local_path):
            raise SettingsError("nothing to evaluate: name a run folder, a checkpoint or a Hugging Face model")
        if self.resume:
            progress.load()
            self.stage = progress.stage  # type: ignore[assignment]
            self.from_path = Path(progress.from_path) if progress.from_path else None
        if self.stage in ("sft", "all") and self.config.problems.dataset != "arithmetic" and not self.config.sft.source:
            raise SettingsError(
                f"problems.dataset={self.config.problems.dataset!r} needs demonstrations: set sft.source to a file that "
                "`midthought feedback convert` wrote, or begin with --stage rl"
            )
        check_source(self.config.inference, self.config.ray)
        self.problems = prepare_problems(self.config.problems, self.config.training.seed)
        source = self.config.model.local_path
        if self.from_path and "warmup" not in progress.done:
            source = str(find_policy(self.from_path, before_rl=self.stage == "rl"))
        self._loaded = load_policy_and_tokenizer(source, self.config.model.dtype) if source else None
        if not self.resume:
            self.run.create()
            self.run.write_config(self.config.to_yaml())
            progress.stage = self.stage
            progress.from_path = str(self.from_path.resolve()) if self.from_path else None
            progress.save()
        if self.config.inference.deterministic:
            torch.use_deterministic_algorithms(True)

    def _find_policy(self) -> None:
        for finished, folder in (("rl", "policy"), ("warmup", "warmup")):
            if finished in self.stages.progress.done:
                self._loaded = load_policy_and_tokenizer(str(self.path / folder), self.config.model.dtype)
                break
        seed = self.config.training.seed
        policy, tokenizer = self._loaded or make_small_policy(self.config.model, seed)
        model = self.config.model
        is_made = not (model.local_path or self.from_path)
        policy = placed(policy, model.device_of_made if is_made else model.device)
        self.workshop = Workshop(self.config, self.problems, policy, Renderer(tokenizer))

    def _warm_up(self) -> dict[str, Any]:
        settings = self.config.sft
        demonstrate = self.workshop.demonstrations()
        learner = supervised_learner(
            self.workshop.policy,
            self.config.model,
            self.config.training,
            learning_rate=settings.learning_rate,
            warmup_steps=settings.warmup_steps,
            num_steps=settings.num_steps,
        )
        start, _ = self.stages.go_on(learner, "warmup")
        every = 10 * self.config.checkpoint.save_interval
        with self.console.stage("Warm-up (SFT)", total=settings.num_steps, unit="steps") as bar:
            bar.start_at(start)

            def on_step(step: int, metrics: Mapping[str, float]) -> None:
                self.run.log("sft", step, metrics)
                bar.advance(1, loss=metrics["loss"])
                if step % every == 0 or self.stages.stop.requested:
                    self._save(learner, "warmup", step)
                self.stages.stop.check()

            run_sft(
                learner,
                demonstrate,
                start=start,
                num_steps=settings.num_steps,
                pad_token_id=self.workshop.pad_token_id,
                mixed_precision=bfloat16_is_fast() if settings.mixed_precision is None else settings.mixed_precision,
                on_step=on_step,
            )
        self._export("warmup", learner)
        return {}

    def _take_over(self) -> dict[str, Any]:
        """A policy from elsewhere: kept in the run folder, so that the run needs nothing outside."""
        if self.from_path is None or run_of(self.from_path) is None:
            self.console.note(_UNTAUGHT)
        self._export("warmup")
        return {}

    def _evaluate(self, when: Literal["before", "after"]) -> dict[str, Any]:
        tasks = self.problems["test"]
        figures: dict[str, Any] = {}
        arms: list[tuple[str, str | None, float]] = [("", None, 0.0)]
        if self.config.evaluation.sampled:
            arms.append(("sampled", None, 1.0))
        if when == "after":
            arms += [(critic, critic, 0.0) for critic in self.config.evaluation.arms]
        source = self.workshop.source(self._num_iters if when == "after" else 0)
        with self.console.stage(f"Evaluation {when}", total=len(tasks) * len(arms), unit="episodes") as bar:
            for name, critic, temperature in arms:
                toolbox = self.workshop.toolbox(critic)
                done = source.evaluate(
                    tasks, toolbox=toolbox, temperature=temperature, on_finished=lambda _: bar.advance(1)
                )
                episodes = self.workshop.rounds(done)
                own = feedback_figures(episodes, self.config.inference.max_turns)
                if not name:
                    own |= figures_by_label(done, episodes, DIFFICULTY_LABEL)
                figures |= {".".join(filter(None, (when, name, key))): value for key, value in own.items()}
                self._keep_trajectories(done, f"{when}.{name}".rstrip("."))
                self.stages.stop.check()
        return {"num_questions": len(tasks), **figures}

    def _reinforce(self) -> dict[str, Any]:
        training, num_iters = self.config.training, self._num_iters
        learner = choose_learner(self.workshop.policy, self.config, self.config.ray, num_iters)
        start, state = self.stages.go_on(learner, "rl")
        source = self.workshop.source(state.get("policy_version", start), trained=learner.policy)
        tasks = ShuffledTasks(self.problems["train"], training.seed)
        restore_stream(source, tasks, state)
        with (
            closing(learner),
            closing(source),
            self.console.stage("Reinforcement learning", total=num_iters, unit="iterations") as bar,
        ):
            bar.start_at(start)

            def on_iteration(done: int, metrics: Mapping[str, float], data: RolloutData) -> None:
                self.run.log("ppo", done, metrics)
                bar.advance(1, reward=metrics["reward/mean"], calls=metrics["episode/calls"])
                is_best = False
                if training.validate_every and done % training.validate_every == 0:
                    is_best = self._validate(source, done)
                    self._keep_trajectories(data.trajectories[:8], "train", step=done)
                if is_best or done % self.config.checkpoint.save_interval == 0 or self.stages.stop.requested:
                    self._save(learner, "rl", done, {"policy_version": source.policy_version, **stream_state(source)})
                self.stages.stop.check()

            plan = ppo_plan(training, self.config.inference, self.workshop.pad_token_id)
            run_ppo(source, learner, tasks, plan, start=start, num_iters=num_iters, on_iteration=on_iteration)
        self._export("policy", learner)
        return {}

    @property
    def _num_iters(self) -> int:
        return self.config.training.num_iters(len(self.problems["train"]))

    def _validate(self, source: Source, iteration: int) -> bool:
        """Log the held-out figures; True where the final accuracy is the best so far."""
        episodes = self.workshop.rounds(source.evaluate(self.problems["validation"]))
        figures = feedback_figures(episodes, self.config.inference.max_turns)
        shown = (
            "exact_match",
            "first_try",
            "call_rate_needed",
            "call_rate_needless",
            "wrong_to_right",
            "right_to_wrong",
        )
        self.run.log("validation", iteration, {key: figures[key] for key in shown if figures[key] == figures[key]})
        return self.stages.note_validation(figures["exact_match"], iteration)

    # -- the run folder ----------------------------------------------------------------------------------------

    def _keep_trajectories(self, done: Sequence[Trajectory], arm: str, step: int = 0) -> None:
        decode, is_right = self.workshop.renderer.decode, self.workshop.is_right
        shown = done[: self.config.evaluation.num_shown]
        self.run.add_trajectories(trajectory_row(t, decode, step=step, arm=arm, exact_match=is_right(t)) for t in shown)

    def _save(self, learner: AnyLearner, stage: str, step: int, more: Mapping[str, Any] | None = None) -> None:
        self.stages.save(learner, self.workshop.renderer.tokenizer, stage, step, more)

    def _export(self, name: str, learner: AnyLearner | None = None) -> None:
        self.stages.export(name, self.workshop.policy, self.workshop.renderer.tokenizer, learner)

    def _report(self) -> dict[str, Any]:
        progress = self.stages.progress
        progress.save()
        summary = {
            **progress.figures,
            **gains(progress.figures),
            "seconds": sum(progress.seconds.values()),
            **{f"seconds.{stage}": spent for stage, spent in progress.seconds.items()},
            "peak_rss_mib": progress.peak_rss_mib,
            "seed": self.config.training.seed,
        }
        self.run.write_summary(summary)
        report = write_report(self.path)
        self._last_table(summary)
        self.console.note(f"Report: {report}")
        return summary

    def _last_table(self, summary: Mapping[str, Any]) -> None:
        def cell(key: str) -> str:
            value = summary.get(key)
            return "–" if value is None or value != value else f"{value:.1%}"

        rows = [
            (title, cell(f"before.{key}"), cell(f"after.{key}"))
            for title, key in _TABLE
            if f"before.{key}" in summary or f"after.{key}" in summary
        ]
        if rows:
            self.console.table("Held-out problems", ("", "before RL", "after RL"), rows)
