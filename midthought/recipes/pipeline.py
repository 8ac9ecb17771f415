"""The stages of a recipe: warm-up, evaluation, reinforcement learning (a `Trainer`), evaluation, control arms, report.

Does not depend on a particular task, tool or reward: a recipe defines its tasks, demonstrations and evaluation.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from midthought.config import RecipeConfig, SupervisedSection, require_allowed
from midthought.errors import SettingsError
from midthought.files.storage_errors import THEN_RESUME, storage_errors
from midthought.learning.distributed.remote_learner import AnyLearner
from midthought.learning.run_checks import check_training, require_finite
from midthought.models.pretrained import placed, warn_without_template
from midthought.plan.choices import resolve, words_of_stage
from midthought.plan.engine_choice import before_choice
from midthought.plan.hardware import find_hardware, require_device
from midthought.recipes.arms import EvaluationArm
from midthought.recipes.control_arms import RFT_ARMS, ControlArm, chosen_arms, effort, print_results
from midthought.recipes.metrics import unfinished
from midthought.recipes.progress import RunProgress
from midthought.recipes.recipe import RecipeEvaluation, is_given
from midthought.recipes.stages import Stages, find_policy, load_policy_and_tokenizer
from midthought.recipes.supervised_steps import SupervisedSteps
from midthought.recipes.tasks import RecipeTasks
from midthought.report.console import Console
from midthought.report.html import write_report
from midthought.report.run_folder import RunFolder, tracked_run_folder
from midthought.report.trajectory_row import trajectory_row
from midthought.tokenization import Renderer
from midthought.trainer.checkup import examine_before_start
from midthought.trainer.initial_policy import generation_values
from midthought.trainer.prompt_record import PromptRecord, learned_from
from midthought.trainer.rollouts import check_source
from midthought.trainer.run import RunStage, record
from midthought.trainer.sft import Demonstrate, supervised_learner
from midthought.trainer.trainer import Trainer
from midthought.types import Trajectory

Stage = Literal["sft", "rl", "all", "evaluate"]
MetricsOf = Callable[[EvaluationArm, list[Trajectory]], Mapping[str, float]]
"""Returns the metrics of an arm's episodes, by keys that have the arm's name."""


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
    recipe: str = field(init=False, default="")
    """Name of the recipe, or `module:name`."""
    run: RunFolder = field(init=False)
    stages: Stages = field(init=False)
    policy: Any = field(init=False)
    tasks: Any = field(init=False)
    """The recipe's `RecipeTasks`."""

    rl_stage: ClassVar[str]
    """Name of the reinforcement learning stage in the run folder."""
    rl_title: ClassVar[str]
    """Its name on the console."""
    num_data_stages: ClassVar[int] = 0
    """Number of stages on the console of `_build_data`."""
    control_arms: ClassVar[Sequence[ControlArm]] = RFT_ARMS
    """The arms that `evaluation.control_arms` may name."""
    results_title: ClassVar[str]
    results: ClassVar[Sequence[tuple[str, str]]]
    """Title and rows of the final table: each row's title, and its metric in `_evaluate`."""

    # -- what a recipe defines -----------------------------------------------------------------------------------

    @abstractmethod
    def _prepare(self) -> None:
        """Checks the recipe's own input and reads its data, before anything is written."""

    @abstractmethod
    def _make_tasks(self, config: RecipeConfig) -> RecipeTasks:
        """Returns the tasks for these settings, which are the run's or a control arm's."""

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
    def _demonstrations(self, config: RecipeConfig) -> Demonstrate:
        """Returns the function that gives each step's demonstrations: of the warm-up, or with the settings of a control arm."""

    @abstractmethod
    def _evaluate(self, when: str) -> dict[str, Any]:
        """Returns the metrics of `self.policy`, with the prefix `when`: `before` or `after` reinforcement learning, or
        `arms.NAME` after the training of a control arm, which is evaluated as `after`."""

    # -- the stages ----------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Runs every stage that is not done. Returns the summary. Ctrl-C takes effect after everything is saved."""
        self.run = tracked_run_folder(self.path, self.config.checkpoint)
        with storage_errors(self.path, THEN_RESUME), self.run:
            self._open()
            return self._go_through()

    def _go_through(self) -> dict[str, Any]:
        plan = self._plan_stages()
        num_left = sum(num_shown for name, _, num_shown in plan if name not in self.stages.progress.done)
        self.console.num_stages = self.num_data_stages + num_left
        with self.stages.stop:
            self._find_policy()
            for name, work, _ in plan:
                self.stages.once(name, work)
            return self._report()

    def _plan_stages(self) -> list[tuple[str, Callable[[], dict[str, Any]], int]]:
        """Returns the stages of the run in their order: name, work, and number of stages on the console."""
        evaluate = functools.partial(self._evaluate, "after")
        if self.stage == "evaluate":
            return [("after", evaluate, 1)]
        takes_over = self.stage == "rl"
        plan = [("warmup", self._take_over if takes_over else self._warm_up, int(not takes_over))]
        if self.stage != "sft":
            before = functools.partial(self._evaluate, "before")
            plan += [("before", before, 1), (self.rl_stage, self._reinforce, 1), ("after", evaluate, 1)]
            # an arm with rollouts is trained by a Trainer with a console and a run folder of its own
            plan += [(arm.key, functools.partial(self._compare_with, arm), 1 + arm.is_supervised) for arm in self._arms]
        return plan

    def _open(self) -> None:
        """Validates all input before anything is written."""
        self.run.begin(resume=self.resume)
        progress = RunProgress(self.run)
        self.stages = Stages(self.run, progress, self.config.checkpoint, self.resume)
        if self.stage == "evaluate" and not (self.from_path or self.config.model.local_path):
            raise SettingsError("nothing to evaluate: name a run folder, a checkpoint or a Hugging Face model")
        if self.resume:
            progress.load()
            progress.require_same_beginning(self.stage, self.from_path)
            self.stage = progress.stage  # type: ignore[assignment]
            self.from_path = Path(progress.from_path) if progress.from_path else None
        check_source(before_choice(self.config.inference), self.config.ray)
        source = self._source
        self._choose(source)
        check_training(self.config.training)
        has_own_warmup = self.stage != "rl" and self._supervised.num_steps > 0
        self._arms = chosen_arms(self._evaluation.control_arms, self.control_arms, self.config, has_own_warmup)
        changes = self.run.settings_changes(self.config) if self.resume else []
        require_allowed(changes, allow=self.allow_changes)
        self._prepare()
        self.tasks = self._make_tasks(self.config)
        record = PromptRecord.of(self.tasks.prompts, learned_from(self.tasks), self.recipe)
        changes += record.changes(self.path) if self.resume else []
        require_allowed(changes, allow=self.allow_changes)
        self._loaded = load_policy_and_tokenizer(source, self.config.model) if source else None
        self.run.create(resume=self.resume)
        stage, step = self.stages.newest_step(self.rl_stage, "warmup")
        self.run.record_settings(self.config, changes, stage, step)
        record.write(self.run)
        for change in changes:
            self.console.note(f"Changed at {stage} {step}: {change}")
        if not self.resume:
            progress.begin(self.stage, self.from_path)
        if self.config.inference.deterministic:
            torch.use_deterministic_algorithms(True)

    def _choose(self, source: str) -> None:
        """Replaces `auto` in the settings, reports the choices, and rejects a run that does not fit in memory."""
        given = is_given(self.config, self.from_path)
        if given:
            require_device(self._device)
        choice = resolve(
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

    @property
    def _source(self) -> str:
        """The model to continue with, as `_beginning`: of the newest finished stage, else of the beginning."""
        for finished, folder in ((self.rl_stage, "policy"), ("warmup", "warmup")):
            if finished in self.stages.progress.done:
                return str(self.path / folder)
        return self._beginning

    @property
    def _beginning(self) -> str:
        """Path or name of the model that the run starts from; empty: a small one that it creates."""
        if self.from_path is not None:
            return str(find_policy(self.from_path, before_rl=self.stage == "rl"))
        return self.config.model.local_path

    def _load(self, source: str) -> None:
        """Makes `self.policy` the model at `source`; empty: the small model that the run starts from. Frees the former one."""
        self.policy = None
        policy, _ = load_policy_and_tokenizer(source, self.config.model) if source else self._make_policy()
        self.policy = placed(policy, self._device)

    def _find_policy(self) -> None:
        self._build_data()
        policy, tokenizer = self._loaded or self._make_policy()
        require_finite(policy, "the model that the run starts from", "Give a model whose weights are finite")
        self.policy, self._loaded = placed(policy, self._device), None
        warn_without_template(tokenizer, "the model")
        self.tasks.open(Renderer(tokenizer, self.config.model.template_arguments))
        if self.stage != "evaluate" and not self.resume:
            examine_before_start(self.tasks.setup(self.policy, self._choice, self.path))

    @property
    def _tokenizer(self) -> Any:
        return self.tasks.renderer.tokenizer

    def _warm_up(self) -> dict[str, Any]:
        num_steps = self._supervised.num_steps
        learner = supervised_learner(self.policy, self.config, self._supervised, num_steps)
        self._supervised_steps.take(
            learner,
            self._demonstrations(self.config),
            num_steps,
            title="Warm-up (SFT)",
            stage="warmup",
            log_as="sft",
        )
        self._export("warmup", learner)
        return {}

    @property
    def _supervised_steps(self) -> SupervisedSteps:
        return SupervisedSteps(self.stages, self.config, self._supervised, self.console, self._tokenizer)

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
            num_shown=self._evaluation.num_shown,
        )
        with self._trainer(self.config, self.tasks, stage, resume=self.resume) as trainer:
            trainer.fit()
            with trainer.meter.phase("saving"):
                self._export("policy", trainer.learner)
        return effort(self.run, "ppo")

    def _trainer(
        self, config: RecipeConfig, tasks: RecipeTasks, run_path: RunStage | Path | None, *, resume: bool
    ) -> Trainer:
        return Trainer(
            config,
            dataset=tasks,
            model=self.policy,
            tokenizer=self._tokenizer,
            tools=tasks.prompts.registry,
            call_format=tasks.prompts.call_format,
            system_prompt=tasks.prompts.system_prompt,
            describe_tools=tasks.prompts.describes_tools,
            run_path=run_path,
            resume=resume,
            allow_changes=self.allow_changes,
        )

    def _run_arms(self, when: str, arms: Sequence[EvaluationArm], metrics_of: MetricsOf) -> dict[str, float]:
        """Runs the episodes of every arm with `self.policy`. Returns the arms' metrics, with the prefix `when`."""
        num_iters = self.config.training.num_iters(self.tasks.num_tasks)
        rollouts = self.tasks.rollouts(self.policy, num_iters if when == "after" else 0)
        num_episodes = sum(len(arm.tasks) for arm in arms)
        found: dict[str, float] = {}
        title = f"Evaluation of {when.removeprefix('arms.')}" if when.startswith("arms.") else f"Evaluation {when}"
        with (
            closing(rollouts),
            self.console.stage(title, total=num_episodes, unit="episodes") as bar,
        ):
            for arm in arms:
                done = rollouts.evaluate(
                    arm.tasks, executor=arm.executor, temperature=arm.temperature, on_finished=lambda _: bar.advance(1)
                )
                found |= {f"{when}.{key}": value for key, value in metrics_of(arm, done).items()}
                if not arm.name:
                    found[f"{when}.unfinished"] = unfinished(done)
                self._add_trajectories(done, f"{when}.{arm.name}".rstrip("."))
                self.stages.stop.check()
        return found

    # -- control arms --------------------------------------------------------------------------------------------

    def _compare_with(self, arm: ControlArm) -> dict[str, Any]:
        """Trains a control arm and evaluates its policy. Returns its metrics, all with the prefix `arm.key`."""
        self.console.note(f"Control arm {arm.name}: {arm.title}")
        own = self._supervise_arm(arm) if arm.is_supervised else self._reinforce_arm(arm)
        self._load(str(self.path / arm.folder / "policy"))
        return {**{f"{arm.key}.{key}": value for key, value in own.items()}, **self._evaluate(arm.key)}

    def _reinforce_arm(self, arm: ControlArm) -> dict[str, float]:
        """Trains a copy of the warmed-up policy in a run folder of its own."""
        config, folder = arm.settings(self.config), self.path / arm.folder
        self._load(str(self.path / "warmup"))
        with self._trainer(config, self._make_tasks(config), folder, resume=True) as trainer:
            trainer.fit(max_seconds=self.run.num_seconds("ppo") if arm.same_seconds else None)
        return effort(RunFolder(folder), "ppo")

    def _supervise_arm(self, arm: ControlArm) -> dict[str, float]:
        """Trains the model that the run started from on demonstrations, for as many seconds as warm-up and RL took."""
        of_warmup, seconds = self.run.num_seconds("sft"), self.run.num_seconds("sft", "ppo")
        num_steps = round(self._supervised.num_steps * seconds / of_warmup)
        demonstrations = self._demonstrations(arm.settings(self.config))
        self._load(self._beginning)
        learner = supervised_learner(self.policy, self.config, self._supervised, num_steps)
        title = f"Supervised steps of {arm.name}"
        self._supervised_steps.take(
            learner, demonstrations, num_steps, title=title, stage=arm.key, log_as=arm.key, max_seconds=seconds
        )
        self._export(f"{arm.folder}/policy", learner)
        return effort(self.run, arm.key, "num_steps")

    # -- the run folder ------------------------------------------------------------------------------------------

    @property
    def _evaluation(self) -> RecipeEvaluation:
        found: RecipeEvaluation = self.config.evaluation  # type: ignore[attr-defined]
        return found

    def _add_trajectories(self, done: Sequence[Trajectory], arm: str) -> None:
        renderer, is_right = self.tasks.renderer, self.tasks.is_right
        record(self.run, self.config.checkpoint, done, renderer, arm=arm, step=0, is_right=is_right)
        shown = done[: self._evaluation.num_shown]
        self.run.add_trajectories(
            trajectory_row(t, renderer.decode, step=0, arm=arm, exact_match=is_right(t)) for t in shown
        )

    def _export(self, name: str, learner: AnyLearner | None = None) -> None:
        generation = generation_values(self.tasks.renderer)
        self.stages.export(name, self.policy, self._tokenizer, learner, generation=generation)

    def _metrics(self) -> dict[str, Any]:
        """Returns the metrics of all stages so far, for the summary."""
        return dict(self.stages.progress.metrics)

    def _report(self) -> dict[str, Any]:
        self.stages.progress.save()
        summary = {**self._metrics(), **self.stages.progress.spent(), "seed": self.config.training.seed}
        self.run.write_summary(summary)
        report = write_report(self.path)
        arms = [arm.name for arm in self._arms]
        print_results(self.console, self.results_title, self.results, summary, arms)
        self.console.note(f"Report: {report}")
        return summary
