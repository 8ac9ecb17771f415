"""The main job: memory, questions, warm-up, PPO, evaluation, report. Composes the rooms; holds no mathematics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from midthought.errors import SettingsError
from midthought.evaluate.metrics import call_rate
from midthought.inference.source import Source
from midthought.learning.harvest import ShuffledTasks
from midthought.learning.learner import Learner
from midthought.learning.ppo import run_ppo
from midthought.learning.ranked import AnyLearner
from midthought.learning.translate import ppo_plan
from midthought.pretrained import placed
from midthought.recipes.podcast.demonstrations import CLEAN, Habits
from midthought.recipes.podcast.evaluation import Arm, arms, run_arms, world_figures
from midthought.recipes.podcast.policy import make_small_policy
from midthought.recipes.podcast.settings import PodcastConfig
from midthought.recipes.podcast.workshop import Workshop
from midthought.recipes.podcast.world import World, prepare_world, read_world_transcripts
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


@dataclass
class PodcastRun:
    """One run of the recipe in its folder. `train` goes through the stages; what is done is not done again."""

    config: PodcastConfig
    path: Path
    console: Console
    stage: Stage = "all"
    from_path: Path | None = None
    resume: bool = False
    run: RunFolder = field(init=False)
    stages: Stages = field(init=False)
    world: World = field(init=False)
    workshop: Workshop = field(init=False)

    def train(self) -> dict[str, Any]:
        """Run every stage that is not done; the summary. KeyboardInterrupt goes through once everything is saved."""
        self._open()
        with self.stages.stop, self.run:
            self._build_world()
            self._find_policy()
            if self.stage == "evaluate":
                self.stages.once("after", lambda: self._evaluate("after"))
                return self._report()
            self.stages.once("warmup", self._take_over if self.stage == "rl" else self._warm_up)
            if self.stage != "sft":
                self.stages.once("before", lambda: self._evaluate("before"))
                self.stages.once("ppo", self._reinforce)
                self.stages.once("after", lambda: self._evaluate("after"))
                if self.config.evaluation.control_arm and self.stage == "all":
                    self.stages.once("control", self._control)
            return self._report()

    # -- the stages --------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Check everything that can be wrong with the input, before anything is written."""
        self.run = RunFolder(self.path, wandb_project=self.config.checkpoint.wandb_project)
        progress = RunProgress(self.run)
        self.stages = Stages(self.run, progress, self.config.checkpoint, self.resume)
        if self.stage == "rl" and self.from_path is None and not self.resume:
            raise SettingsError("--stage rl needs a finished warm-up: give --from with a run folder or a checkpoint")
        if self.stage == "evaluate" and not (self.from_path or self.config.model.local_path):
            raise SettingsError("nothing to evaluate: name a run folder, a checkpoint or a Hugging Face model")
        if self.resume:
            progress.load()
            self.stage = progress.stage  # type: ignore[assignment]
            self.from_path = Path(progress.from_path) if progress.from_path else None
        check_source(self.config.inference, self.config.ray)
        transcripts = read_world_transcripts(self.config)
        self.world = prepare_world(self.config, transcripts, self.path)
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

    def _build_world(self) -> None:
        with (
            self.stages.progress.timed("memory"),
            self.console.stage("Memory and questions", unit="chunks embedded") as bar,
        ):
            report = self.world.build(self.path, bar.follow)
        tasks = self.world.tasks
        self.console.note(
            f"  {sum(map(len, self.world.chunks.values())):,} chunks of the episodes "
            f"({report.num_added:,} new); questions: {len(tasks['train']):,} for training, "
            f"{len(tasks['test']):,} that need the memory and {len(tasks['test_no_memory']):,} that do not for the test"
        )

    def _find_policy(self) -> None:
        for finished, folder in (("ppo", "policy"), ("warmup", "warmup")):
            if finished in self.stages.progress.done:
                self._loaded = load_policy_and_tokenizer(str(self.path / folder), self.config.model.dtype)
                break
        policy, tokenizer = self._loaded or self._begin()
        model = self.config.model
        is_made = not (model.local_path or self.from_path)
        policy = placed(policy, model.device_of_made if is_made else model.device)
        self.workshop = Workshop(self.config, self.world, policy, Renderer(tokenizer))

    def _begin(self) -> tuple[Any, Any]:
        """Policy and tokenizer as they are before any training."""
        if self.config.model.local_path:
            return load_policy_and_tokenizer(self.config.model.local_path, self.config.model.dtype)
        return make_small_policy(self.config, self.world.chunks["train"])

    def _warm_up(self) -> dict[str, Any]:
        settings = self.config.warmup
        learner = self._learner(self.workshop.policy, settings.num_steps)
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

            habits = Habits(settings.ask_short, settings.give_up, settings.misread, settings.needless_ask)
            self.workshop.supervise(learner, habits, start, settings.num_steps, on_step)
        self._export("warmup", learner)
        return {}

    def _take_over(self) -> dict[str, Any]:
        """A warm-up that was done elsewhere: kept in the run folder, so that the run needs nothing outside."""
        self._export("warmup")
        return {}

    def _evaluate(self, when: Literal["before", "after"]) -> dict[str, Any]:
        source = self.workshop.source(self._num_iters if when == "after" else 0)
        todo = arms(
            self.world, after=when == "after", sampled=self.config.evaluation.sampled, seed=self.config.training.seed
        )
        num_episodes = sum(len(arm.tasks) for arm in todo)
        with self.console.stage(f"Evaluation {when}", total=num_episodes, unit="episodes") as bar:

            def on_arm(arm: Arm, done: list[Trajectory]) -> None:
                self._keep_trajectories(done, f"{when}.{arm.name}".rstrip("."))
                self.stages.stop.check()

            figures = run_arms(source, todo, self.workshop.is_right, on_arm, lambda _: bar.advance(1))
        found = {f"{when}.{name}": value for name, value in figures.items()}
        is_first = when == "before" or self.stage == "evaluate"
        return found | (world_figures(self.world) if is_first else {})

    def _reinforce(self) -> dict[str, Any]:
        training, num_iters = self.config.training, self._num_iters
        learner = choose_learner(self.workshop.policy, self.config, self.config.ray, num_iters)
        start, state = self.stages.go_on(learner, "ppo")
        source = self.workshop.source(state.get("policy_version", start), trained=learner.policy)
        tasks = ShuffledTasks(self.world.tasks["train"], training.seed)
        restore_stream(source, tasks, state)
        with closing(learner), closing(source), self.console.stage("PPO", total=num_iters, unit="iterations") as bar:
            bar.start_at(start)

            def on_iteration(done: int, metrics: Mapping[str, float], data: RolloutData) -> None:
                self.run.log("ppo", done, metrics)
                bar.advance(1, reward=metrics["reward/mean"], calls=metrics["episode/calls"])
                is_best = False
                if training.validate_every and done % training.validate_every == 0:
                    is_best = self._validate(source, done)
                    self._keep_trajectories(data.trajectories[:8], "train", step=done)
                if is_best or done % self.config.checkpoint.save_interval == 0 or self.stages.stop.requested:
                    carried = {"policy_version": source.policy_version, **stream_state(source)}
                    self._save(learner, "ppo", done, carried)
                self.stages.stop.check()

            plan = ppo_plan(training, self.config.inference, self.workshop.pad_token_id)
            run_ppo(source, learner, tasks, plan, start=start, num_iters=num_iters, on_iteration=on_iteration)
        self._export("policy", learner)
        return {}

    @property
    def _num_iters(self) -> int:
        return self.config.training.num_iters(len(self.world.tasks["train"]))

    def _control(self) -> dict[str, Any]:
        """The same model from the same start, taught by clean demonstrations for as long as warm-up and PPO took."""
        policy, _ = self._begin()
        workshop = replace(self.workshop, policy=policy)
        seconds = self.stages.progress.seconds["warmup"] + self.stages.progress.seconds["ppo"]
        deadline = time.monotonic() + seconds
        num_steps = round(self.config.warmup.num_steps * seconds / self.stages.progress.seconds["warmup"])
        learner = self._learner(policy, num_steps)
        with self.console.stage("Control arm (SFT only)", total=num_steps, unit="steps") as bar:

            def on_step(step: int, metrics: Mapping[str, float]) -> None:
                self.run.log("control", step, metrics)
                bar.advance(1, loss=metrics["loss"])
                self.stages.stop.check()

            workshop.supervise(learner, CLEAN, 0, num_steps, on_step, deadline)
        done = workshop.source().evaluate(self.world.tasks["test"])
        return {
            "control.exact_match": sum(map(self.workshop.is_right, done)) / len(done),
            "control.num_steps": learner.num_steps,
        }

    def _learner(self, policy: Any, num_steps: int) -> Learner:
        """Of demonstrations, for the warm-up and the control arm."""
        warmup = self.config.warmup
        return supervised_learner(
            policy,
            self.config.model,
            self.config.training,
            learning_rate=warmup.learning_rate,
            warmup_steps=warmup.warmup_steps,
            num_steps=num_steps,
        )

    def _validate(self, source: Source, iteration: int) -> bool:
        """Log the held-out figures; True where the exact match is the best so far."""
        done = source.evaluate(self.world.tasks["validation"])
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

    # -- the run folder ----------------------------------------------------------------------------------------

    def _keep_trajectories(self, done: Sequence[Trajectory], arm: str, step: int = 0) -> None:
        shown = done[: self.config.evaluation.num_shown]
        rows = [
            trajectory_row(t, self.workshop.renderer.decode, step=step, arm=arm, exact_match=self.workshop.is_right(t))
            for t in shown
        ]
        self.run.add_trajectories(rows)

    def _save(self, learner: AnyLearner, stage: str, step: int, more: Mapping[str, Any] | None = None) -> None:
        self.stages.save(learner, self.workshop.renderer.tokenizer, stage, step, more)

    def _export(self, name: str, learner: AnyLearner | None = None) -> None:
        self.stages.export(name, self.workshop.policy, self.workshop.renderer.tokenizer, learner)

    def _report(self) -> dict[str, Any]:
        self.stages.progress.save()
        seconds = {stage: spent for stage, spent in self.stages.progress.seconds.items() if stage != "control"}
        summary = {
            **self.stages.progress.figures,
            "control.exact_match": self.stages.progress.figures.get("control.exact_match"),
            "seconds": sum(seconds.values()),
            **{f"seconds.{stage}": spent for stage, spent in self.stages.progress.seconds.items()},
            "peak_rss_mib": self.stages.progress.peak_rss_mib,
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
            return "–" if value is None else f"{value:.1%}"

        rows = [
            (title, cell(f"before.{key}"), cell(f"after.{key}"))
            for title, key in (
                ("exact match, memory needed", "exact_match"),
                ("… sampled at temperature 1", "sampled_exact_match"),
                ("… oracle results", "oracle.exact_match"),
                ("… results shuffled", "shuffled.exact_match"),
                ("… tool off", "tool_off.exact_match"),
                ("exact match, answer in the prompt", "no_memory.exact_match"),
                ("calls where memory is needed", "call_rate_needed"),
                ("calls where it is not", "call_rate_needless"),
            )
            if f"before.{key}" in summary or f"after.{key}" in summary
        ]
        if rows:
            has_before = "before.exact_match" in summary
            headings = ("", "before PPO", "after PPO" if has_before else "this policy")
            shown = rows if has_before else [(title, after) for title, _, after in rows]
            self.console.table("Held-out episodes", headings if has_before else headings[::2], shown)
