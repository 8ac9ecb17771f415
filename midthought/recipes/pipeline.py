"""The stages of a recipe: warm-up, evaluation, reinforcement learning (a `Trainer`), evaluation, report.

Does not depend on a particular task, tool or reward: a recipe defines its tasks, demonstrations and evaluation.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from midthought.config import RecipeConfig, require_allowed
from midthought.errors import SettingsError
from midthought.learning.actor_critic import AnyLearner
from midthought.learning.checkpoint import latest, step_of
from midthought.learning.learner import Learner
from midthought.learning.phase_meter import PhaseMeter
from midthought.learning.run_checks import check_training, require_finite
from midthought.learning.sft import run_sft
from midthought.plan.choices import choose_and_plan, words_of_stage
from midthought.plan.engine_choice import before_choice
from midthought.plan.hardware import find_hardware, require_device
from midthought.plan.phases import plan_record
from midthought.precision import PrecisionChoice
from midthought.pretrained import placed
from midthought.recipes.presets import is_given
from midthought.recipes.progress import RunProgress
from midthought.recipes.stages import Stages, find_policy, load_policy_and_tokenizer, supervised_learner
from midthought.recipes.supervised import SupervisedSection
from midthought.recipes.tasks import RecipeTasks
from midthought.report.console import Console
from midthought.report.html import write_report
from midthought.report.run_folder import RunFolder
from midthought.report.trajectory_row import trajectory_row
from midthought.rollout.local_rollouts import Rollouts
from midthought.tokenization import Renderer
from midthought.trainer.plan_record import PlanRecord
from midthought.trainer.rollouts import check_source
from midthought.trainer.run_writer import RunStage
from midthought.trainer.trainer import Trainer
from midthought.types import Trajectory

Stage = Literal["sft", "rl", "all", "evaluate"]
When = Literal["before", "after"]
Demonstrate = Callable[[int], Sequence[Trajectory]]
"""Maps a step to its demonstrations."""


@dataclass
class RecipeRun(ABC):
    """One run of a recipe in its folder. `train` runs the stages that are not done."""

    config: RecipeConfig
    path: Path
    console: Console
    stage: Stage = "all"
    from_path: Path | None = None
    resume: bool = False
    allow_changes: bool = False
    """Permits resuming with settings that change what is learned."""
    run: RunFolder = field(init=False)
    stages: Stages = field(init=False)
    policy: Any = field(init=False)
    tasks: Any = field(init=False)
    """The recipe's `RecipeTasks`."""

    rl_stage: ClassVar[str]
    """Name of the reinforcement learning stage in the run folder."""
    rl_title: ClassVar[str]
    """Its name on the console."""

    # -- what a recipe defines -----------------------------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> RecipeTasks:
        """Checks the recipe's own input and returns its tasks, before anything is written."""

    @abstractmethod
    def _build_data(self) -> None:
        """Writes what the tasks need, for example a memory."""

    @abstractmethod
    def _make_policy(self) -> tuple[Any, Any]:
        """Returns a small, randomly initialized policy and its tokenizer, for a run without a given model."""

    @property
    @abstractmethod
    def _supervised(self) -> SupervisedSection:
        """Returns the settings of the warm-up."""

    @abstractmethod
    def _demonstrations(self) -> Demonstrate:
        """Returns the function that gives the warm-up's demonstrations of each step."""

    @abstractmethod
    def _evaluate(self, when: When) -> dict[str, Any]:
        """Returns the metrics before or after reinforcement learning."""

    @abstractmethod
    def _last_table(self, summary: Mapping[str, Any]) -> None:
        """Prints the final table on the console."""

    # -- the stages ----------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Runs every stage that is not done. Returns the summary. Ctrl-C takes effect after everything is saved."""
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
        """Validates all input before anything is written."""
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
        check_source(before_choice(self.config.inference), self.config.ray)
        source = self.config.model.local_path
        if self.from_path and "warmup" not in progress.done:
            source = str(find_policy(self.from_path, before_rl=self.stage == "rl"))
        self._choose(str(self.path / "warmup") if "warmup" in progress.done else source)
        check_training(self.config.training)
        changes = self.run.settings_changes(self.config) if self.resume else []
        require_allowed(changes, allow=self.allow_changes)
        self.tasks = self._prepare()
        self._loaded = load_policy_and_tokenizer(source, self.config.model) if source else None
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
        """Raises `SettingsError` if `--stage` or `--from` differs from the start of the run: a resumed run keeps both."""
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
        """Returns stage and step of the newest checkpoint."""
        for stage in (self.rl_stage, "warmup"):
            if newest := latest(self.run.checkpoints_path / stage):
                return stage, step_of(newest)
        return "beginning", 0

    def _choose(self, source: str) -> None:
        """Replaces `auto` in the settings, reports the choices, and rejects a run that does not fit in memory."""
        given = is_given(self.config, self.from_path)
        if given:
            require_device(self._device)
        choice = choose_and_plan(
            self.config, find_hardware(self._device), source=source, is_given=given, words=words_of_stage(self.stage)
        )
        self.config, self._choice = choice.config, choice
        if self.stage != "evaluate":
            lines = "\n".join(choice.table()) if given else choice.algorithm
            if lines:
                self.console.note(lines)
            choice.require_possible()

    @property
    def _device(self) -> str:
        model = self.config.model
        return model.device if model.local_path or self.from_path else model.device_of_made

    def _find_policy(self) -> None:
        self._build_data()
        for finished, folder in ((self.rl_stage, "policy"), ("warmup", "warmup")):
            if finished in self.stages.progress.done:
                self._loaded = load_policy_and_tokenizer(str(self.path / folder), self.config.model)
                break
        policy, tokenizer = self._loaded or self._make_policy()
        require_finite(policy, "the model that the run starts from", "Give a model whose weights are finite")
        self.policy = placed(policy, self._device)
        self.tasks.open(Renderer(tokenizer, self.config.model.chat_template_kwargs))

    @property
    def _tokenizer(self) -> Any:
        return self.tasks.renderer.tokenizer

    def _warm_up(self) -> dict[str, Any]:
        num_steps = self._supervised.num_steps
        learner = supervised_learner(self.policy, self.config, self._supervised, num_steps)
        start = self.stages.restore(learner, "warmup")
        checkpoints = self.stages.checkpoints("warmup")
        every = 10 * self.config.checkpoint.save_interval

        def save(step: int) -> None:
            if step % every == 0 or self.stages.stop.requested:
                checkpoints.save(learner, self._tokenizer, step, {"stage": "warmup"})

        meter = PhaseMeter(self.policy)
        record = PlanRecord(self.run, "sft", self._planned, meter) if self.stage == "sft" else None
        try:
            with meter.phase("update"):
                self._supervise("Warm-up (SFT)", "sft", learner, self._demonstrations(), start, num_steps, on_step=save)
            with meter.phase("saving"):
                self._export("warmup", learner)
        finally:
            if record is not None:  # else reinforcement learning records the plan, with all its phases
                record.write()
        return {}

    @property
    def _planned(self) -> dict[str, Any]:
        return plan_record(self._choice.plan, self._choice.unknown, self._choice.hardware)

    def _supervise(
        self,
        title: str,
        name: str,
        learner: Learner,
        demonstrations: Demonstrate,
        start: int,
        num_steps: int,
        *,
        on_step: Callable[[int], None] = lambda step: None,
        deadline: float | None = None,
    ) -> None:
        """Takes supervised steps, logged as `name`."""
        with self.console.stage(title, total=num_steps, unit="steps") as bar:
            bar.start_at(start)

            def log(step: int, metrics: Mapping[str, float]) -> None:
                self.run.log(name, step, metrics)
                bar.advance(1, loss=metrics["loss"])
                on_step(step)
                self.stages.stop.check()

            run_sft(
                learner,
                demonstrations,
                start=start,
                num_steps=num_steps,
                mixed_precision=self._is_mixed(self._supervised),
                on_step=log,
                on_precision=self._note_precision,
                deadline=deadline,
            )

    def _is_mixed(self, settings: SupervisedSection) -> bool | None:
        """Whether supervised steps run under bfloat16 autocast. None: measure it and call `_note_precision`."""
        if settings.mixed_precision is None and self.config.inference.deterministic:
            return False
        chosen = self.stages.progress.precision
        return chosen == "bfloat16" if settings.mixed_precision is None and chosen else settings.mixed_precision

    def _note_precision(self, choice: PrecisionChoice) -> None:
        self.stages.progress.precision = choice.precision
        if math.isfinite(choice.speedup):
            self.stages.progress.metrics["warmup.bfloat16_speedup"] = choice.speedup
        self.stages.progress.save()
        self.console.note(f"  Supervised steps are computed in {choice}")

    def _take_over(self) -> dict[str, Any]:
        """Copies a given policy into the run folder, so that the run needs no files outside it."""
        self._export("warmup")
        return {}

    def _reinforce(self) -> dict[str, Any]:
        stage = RunStage(
            self.run,
            self.rl_stage,
            self.rl_title,
            self.console,
            self.stages.stop,
            self._choice,
            num_shown=self._num_shown,
        )
        with Trainer(
            self.config,
            dataset=self.tasks,
            model=self.policy,
            tokenizer=self._tokenizer,
            tools=self.tasks.prompts.registry,
            call_format=self.tasks.prompts.call_format,
            system_prompt=self.tasks.prompts.system_prompt,
            describe_tools=self.tasks.prompts.describes_tools,
            run_path=stage,
            resume=self.resume,
        ) as trainer:
            trainer.fit()
            with trainer.meter.phase("saving"):
                self._export("policy", trainer.learner)
        return {}

    def _rollouts(self, when: When) -> Rollouts:
        """Runs the episodes of an evaluation. Close it after use."""
        num_iters = self.config.training.num_iters(self.tasks.num_tasks)
        return self.tasks.rollouts(self.policy, num_iters if when == "after" else 0)

    # -- the run folder ------------------------------------------------------------------------------------------

    @property
    def _num_shown(self) -> int:
        return int(self.config.evaluation.num_shown)  # type: ignore[attr-defined]

    def _add_trajectories(self, done: Sequence[Trajectory], arm: str) -> None:
        decode, is_right = self.tasks.renderer.decode, self.tasks.is_right
        shown = done[: self._num_shown]
        self.run.add_trajectories(trajectory_row(t, decode, step=0, arm=arm, exact_match=is_right(t)) for t in shown)

    def _export(self, name: str, learner: AnyLearner | None = None) -> None:
        self.stages.export(name, self.policy, self._tokenizer, learner)

    def _metrics(self) -> dict[str, Any]:
        """Returns the metrics of all stages so far, for the summary."""
        return dict(self.stages.progress.metrics)

    def _report(self) -> dict[str, Any]:
        progress = self.stages.progress
        progress.save()
        summary = {
            **self._metrics(),
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
    """Returns rows (title, before, after) in per cent, for the metrics that were measured."""

    def cell(key: str) -> str:
        value = summary.get(key)
        return "–" if value is None or value != value else f"{value:.1%}"

    return [
        (title, cell(f"before.{key}"), cell(f"after.{key}"))
        for title, key in titles
        if f"before.{key}" in summary or f"after.{key}" in summary
    ]
