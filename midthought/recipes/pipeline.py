"""The main job of a recipe in its folder: warm-up, evaluation, reinforcement learning, evaluation, report.

Composes the rooms; knows no task, no tool and no reward: a recipe says what it prepares, teaches and measures.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch

from midthought.config import RecipeConfig, require_allowed
from midthought.errors import SettingsError
from midthought.learning.actor_critic import AnyLearner
from midthought.learning.checkpoint import latest, step_of
from midthought.learning.learner import Learner
from midthought.learning.ppo import run_ppo
from midthought.learning.run_checks import RunChecks, check_training, require_finite
from midthought.plan.choices import choose_and_plan
from midthought.plan.hardware import find_hardware
from midthought.precision import PrecisionChoice
from midthought.pretrained import placed
from midthought.recipes.presets import is_given
from midthought.recipes.progress import RunProgress
from midthought.recipes.stages import Stages, find_policy, load_policy_and_tokenizer
from midthought.report.console import Console
from midthought.report.html import write_report
from midthought.report.run_folder import RunFolder
from midthought.report.trajectory_row import trajectory_row
from midthought.rollout.local_rollouts import Rollouts
from midthought.rollout.rollout_batch import ShuffledTasks
from midthought.tokenization import Renderer
from midthought.trainer.episodes import restore_stream, stream_state
from midthought.trainer.learners import choose_learner
from midthought.trainer.rollouts import check_source
from midthought.types import RolloutData, Task, Trajectory

Stage = Literal["sft", "rl", "all", "evaluate"]
When = Literal["before", "after"]
OnStep = Callable[[int, Mapping[str, float]], None]
"""(step, metrics) of a supervised stage."""


class Workshop(Protocol):
    """What the stages need around a policy."""

    @property
    def policy(self) -> Any: ...

    @property
    def renderer(self) -> Renderer: ...

    @property
    def pad_token_id(self) -> int: ...

    def source(self, policy_version: int = 0, *, trained: Any = None) -> Rollouts:
        """The rollout loop over the present policy."""
        ...

    def is_right(self, trajectory: Trajectory) -> bool:
        """Whether its last answer is."""
        ...


@dataclass
class RecipeRun(ABC):
    """One run of a recipe in its folder. `train` goes through the stages; what is done is not done again."""

    config: RecipeConfig
    path: Path
    console: Console
    stage: Stage = "all"
    from_path: Path | None = None
    resume: bool = False
    allow_changes: bool = False
    """Resume with settings that change what is learned."""
    run: RunFolder = field(init=False)
    stages: Stages = field(init=False)
    workshop: Any = field(init=False)
    """The recipe's `Workshop`."""

    rl_stage: ClassVar[str]
    """Reinforcement learning's name in the run folder."""
    rl_title: ClassVar[str]
    """The same on the console."""

    # -- what a recipe says --------------------------------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> None:
        """Check the recipe's own input and prepare its tasks, before anything is written."""

    @abstractmethod
    def _begin(self) -> tuple[Any, Any]:
        """Policy and tokenizer as they are before any training, where none is loaded."""

    @abstractmethod
    def _make_workshop(self, policy: Any, renderer: Renderer) -> Workshop:
        """For this policy."""

    @property
    @abstractmethod
    def _train_tasks(self) -> Sequence[Task]:
        """What reinforcement learning asks."""

    @property
    @abstractmethod
    def _num_shown(self) -> int:
        """Episodes of each arm that go into `trajectories.jsonl`."""

    @abstractmethod
    def _sft_learner(self, policy: Any, num_steps: int) -> Learner:
        """A learner of demonstrations."""

    @abstractmethod
    def _num_sft_steps(self) -> int:
        """Optimizer steps of the warm-up."""

    @abstractmethod
    def _teach(self, learner: Learner, start: int, on_step: OnStep) -> None:
        """The warm-up from step `start` on."""

    @abstractmethod
    def _evaluate(self, when: When) -> dict[str, Any]:
        """The figures before or after reinforcement learning."""

    @abstractmethod
    def _validate(self, source: Rollouts, iteration: int) -> bool:
        """Log the held-out figures; True where they are the best so far."""

    @abstractmethod
    def _last_table(self, summary: Mapping[str, Any]) -> None:
        """What the console shows at the end."""

    # -- the stages ----------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Run every stage that is not done; the summary. KeyboardInterrupt goes through once everything is saved."""
        self.run = RunFolder(self.path, wandb_project=self.config.checkpoint.wandb_project)
        with self.run:
            self._open()
            return self._go_through()

    def _go_through(self) -> dict[str, Any]:
        with self.stages.stop:
            self._find_policy()
            if self.stage == "evaluate":
                self.stages.once("after", lambda: self._evaluate("after"))
                return self._report()
            self.stages.once("warmup", self._take_over if self.stage == "rl" else self._warm_up)
            if self.stage != "sft":
                self._reinforce_and_compare()
            return self._report()

    def _reinforce_and_compare(self) -> None:
        self.stages.once("before", lambda: self._evaluate("before"))
        self.stages.once(self.rl_stage, self._reinforce)
        self.stages.once("after", lambda: self._evaluate("after"))

    def _open(self) -> None:
        """Check everything that can be wrong with the input, before anything is written."""
        self.run.begin(resume=self.resume)
        progress = RunProgress(self.run)
        self.stages = Stages(self.run, progress, self.config.checkpoint, self.resume)
        if self.stage == "evaluate" and not (self.from_path or self.config.model.local_path):
            raise SettingsError("nothing to evaluate: name a run folder, a checkpoint or a Hugging Face model")
        if self.resume:
            progress.load()
            self._require_same_beginning(progress)
            self.stage = progress.stage  # type: ignore[assignment]
            self.from_path = Path(progress.from_path) if progress.from_path else None
        check_source(self.config.inference, self.config.ray)
        source = self.config.model.local_path
        if self.from_path and "warmup" not in progress.done:
            source = str(find_policy(self.from_path, before_rl=self.stage == "rl"))
        self._choose(str(self.path / "warmup") if "warmup" in progress.done else source)
        check_training(self.config.training)
        changes = self.run.settings_changes(self.config) if self.resume else []
        require_allowed(changes, allow=self.allow_changes)
        self._prepare()
        self._loaded = load_policy_and_tokenizer(source, self.config.model.weights_dtype) if source else None
        self.run.create(resume=self.resume)
        self.run.record_settings(self.config, changes, *self._newest_step)
        for change in changes:
            self.console.note(f"Changed at {' '.join(map(str, self._newest_step))}: {change}")
        if not self.resume:
            progress.stage = self.stage
            progress.from_path = str(self.from_path.resolve()) if self.from_path else None
            progress.save()
        if self.config.inference.deterministic:
            torch.use_deterministic_algorithms(True)

    def _require_same_beginning(self, progress: RunProgress) -> None:
        """Raises SettingsError for another `--stage` or `--from` than the run began with: a resumed run keeps to its own."""
        if self.stage not in ("all", progress.stage):
            raise SettingsError(
                f"--stage {self.stage}: the run in {self.path} began with --stage {progress.stage}, and a resumed run keeps to "
                "it; leave --stage out, or give another folder"
            )
        if self.from_path and str(self.from_path.resolve()) != progress.from_path:
            raise SettingsError(
                f"--from {self.from_path}: the run in {self.path} began from {progress.from_path or 'nothing'}, and a resumed "
                "run keeps to it; leave --from out, or give another folder"
            )

    @property
    def _newest_step(self) -> tuple[str, int]:
        """Stage and step of the newest checkpoint."""
        for stage in (self.rl_stage, "warmup"):
            if newest := latest(self.run.checkpoints_path / stage):
                return stage, step_of(newest)
        return "beginning", 0

    def _choose(self, source: str) -> None:
        """Replace `auto` in the settings, say what was chosen, and refuse a run that does not fit its memory."""
        given = is_given(self.config, self.from_path)
        words = {"critic": "none", "reference": False} if self.stage == "sft" else {}
        choice = choose_and_plan(self.config, find_hardware(self._device), source=source, is_given=given, words=words)
        self.config = choice.config
        if self.stage != "evaluate":
            if given:
                self.console.note("\n".join(choice.lines()))
            choice.require_possible()

    @property
    def _device(self) -> str:
        model = self.config.model
        return model.device if model.local_path or self.from_path else model.device_of_made

    def _find_policy(self) -> None:
        for finished, folder in ((self.rl_stage, "policy"), ("warmup", "warmup")):
            if finished in self.stages.progress.done:
                self._loaded = load_policy_and_tokenizer(str(self.path / folder), self.config.model.weights_dtype)
                break
        policy, tokenizer = self._loaded or self._begin()
        require_finite(policy, "the model that the run starts from", "Give a model whose weights are finite")
        policy = placed(policy, self._device)
        self.workshop = self._make_workshop(policy, Renderer(tokenizer))

    def _warm_up(self) -> dict[str, Any]:
        num_steps = self._num_sft_steps()
        learner = self._sft_learner(self.workshop.policy, num_steps)
        start, _ = self.stages.go_on(learner, "warmup")
        every = 10 * self.config.checkpoint.save_interval
        with self.console.stage("Warm-up (SFT)", total=num_steps, unit="steps") as bar:
            bar.start_at(start)

            def on_step(step: int, metrics: Mapping[str, float]) -> None:
                self.run.log("sft", step, metrics)
                bar.advance(1, loss=metrics["loss"])
                if step % every == 0 or self.stages.stop.requested:
                    self._save(learner, "warmup", step)
                self.stages.stop.check()

            self._teach(learner, start, on_step)
        self._export("warmup", learner)
        return {}

    def _is_mixed(self, setting: bool | None) -> bool | None:
        """Whether supervised steps run under bfloat16 autocast; None: to be measured, and told to `_note_precision`."""
        if setting is None and self.config.inference.deterministic:
            return False
        chosen = self.stages.progress.precision
        return chosen == "bfloat16" if setting is None and chosen else setting

    def _note_precision(self, choice: PrecisionChoice) -> None:
        self.stages.progress.precision = choice.precision
        if math.isfinite(choice.speedup):
            self.stages.progress.figures["warmup.bfloat16_speedup"] = choice.speedup
        self.stages.progress.save()
        self.console.note(f"  Supervised steps are computed in {choice}")

    def _take_over(self) -> dict[str, Any]:
        """A policy from elsewhere: kept in the run folder, so that the run needs nothing outside."""
        self._export("warmup")
        return {}

    def _reinforce(self) -> dict[str, Any]:
        training, num_iters = self.config.training, self._num_iters
        learner = choose_learner(self.workshop.policy, self.config, self.config.ray, num_iters)
        start, state = self.stages.go_on(learner, self.rl_stage)
        source = self.workshop.source(state.get("policy_version", start), trained=learner.policy)
        tasks = ShuffledTasks(self._train_tasks, training.seed)
        restore_stream(source, tasks, state)
        checks = RunChecks(training, (row for row in self.run.metrics.read() if row["stage"] == "ppo"))
        with (
            closing(learner),
            closing(source),
            self.console.stage(self.rl_title, total=num_iters, unit="iterations") as bar,
        ):
            bar.start_at(start)

            def on_iteration(done: int, metrics: Mapping[str, float], data: RolloutData) -> None:
                self.run.log("ppo", done, metrics)
                checks.after_iteration(metrics, data.trajectories)
                bar.advance(1, reward=metrics["reward/mean"], calls=metrics["episode/calls"])
                is_best = False
                if training.validate_every and done % training.validate_every == 0:
                    is_best = self._validate(source, done)
                    self._keep_trajectories(data.trajectories[:8], "train", step=done)
                if is_best or done % self.config.checkpoint.save_interval == 0 or self.stages.stop.requested:
                    carried = {"policy_version": source.policy_version, **stream_state(source)}
                    self._save(learner, self.rl_stage, done, carried)
                self.stages.stop.check()

            run_ppo(
                source,
                learner,
                tasks,
                self.config.frozen(),
                pad_token_id=self.workshop.pad_token_id,
                start=start,
                num_iters=num_iters,
                on_iteration=on_iteration,
                before_update=checks.before_update,
            )
            checks.after_run()
        self._export("policy", learner)
        return {}

    @property
    def _num_iters(self) -> int:
        return self.config.training.num_iters(len(self._train_tasks))

    # -- the run folder ------------------------------------------------------------------------------------------

    def _keep_trajectories(self, done: Sequence[Trajectory], arm: str, step: int = 0) -> None:
        decode, is_right = self.workshop.renderer.decode, self.workshop.is_right
        shown = done[: self._num_shown]
        self.run.add_trajectories(trajectory_row(t, decode, step=step, arm=arm, exact_match=is_right(t)) for t in shown)

    def _save(self, learner: AnyLearner, stage: str, step: int, more: Mapping[str, Any] | None = None) -> None:
        self.stages.save(learner, self.workshop.renderer.tokenizer, stage, step, more)

    def _export(self, name: str, learner: AnyLearner | None = None) -> None:
        self.stages.export(name, self.workshop.policy, self.workshop.renderer.tokenizer, learner)

    def _figures(self) -> dict[str, Any]:
        """Of all stages so far, for the summary."""
        return dict(self.stages.progress.figures)

    def _report(self) -> dict[str, Any]:
        progress = self.stages.progress
        progress.save()
        summary = {
            **self._figures(),
            "seconds": sum(spent for stage, spent in progress.seconds.items() if stage != "control"),
            **{f"seconds.{stage}": spent for stage, spent in progress.seconds.items()},
            "peak_rss_mib": progress.peak_rss_mib,
            "seed": self.config.training.seed,
        }
        self.run.write_summary(summary)
        report = write_report(self.path)
        self._last_table(summary)
        self.console.note(f"Report: {report}")
        return summary


def before_and_after(summary: Mapping[str, Any], titles: Iterable[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Rows (title, before, after) in per cent, of the figures that were measured."""

    def cell(key: str) -> str:
        value = summary.get(key)
        return "–" if value is None or value != value else f"{value:.1%}"

    return [
        (title, cell(f"before.{key}"), cell(f"after.{key}"))
        for title, key in titles
        if f"before.{key}" in summary or f"after.{key}" in summary
    ]
