"""A recipe's run as a script: warm-up, evaluation, reinforcement learning (a `Trainer`), evaluation, control arms, report.

Does not depend on a particular task, tool or reward: a recipe defines its tasks, demonstrations and evaluation.
"""

from __future__ import annotations

import functools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from midthought.config import RecipeConfig, SupervisedSection
from midthought.errors import SettingsError
from midthought.files.storage_errors import THEN_RESUME, storage_errors
from midthought.learning.adapters import has_adapters
from midthought.learning.checkpoint import latest, step_of
from midthought.learning.distributed.remote_learner import AnyLearner
from midthought.learning.learner import Learner
from midthought.learning.run_checks import require_finite
from midthought.models.peft_folders import merge
from midthought.models.precision import PrecisionChoice
from midthought.models.pretrained import (
    load_model,
    load_tokenizer,
    placed,
    policy_folder,
    save_model,
    warn_without_template,
)
from midthought.plan.choices import fixed_in, resolve
from midthought.plan.engine_choice import before_choice
from midthought.plan.hardware import find_hardware, require_device
from midthought.recipes.arms import EvaluationArm
from midthought.recipes.control_arms import RFT_ARMS, ControlArm, chosen_arms, effort, print_results
from midthought.recipes.metrics import unfinished
from midthought.recipes.progress import RunProgress
from midthought.recipes.recipe import RecipeEvaluation, is_given
from midthought.recipes.tasks import RecipeTasks
from midthought.report.console import Console
from midthought.report.html import write_report
from midthought.report.run_folder import RunFolder
from midthought.tokenization import Renderer
from midthought.trainer.checkup import examine_before_start
from midthought.trainer.initial_policy import generation_values
from midthought.trainer.prompt_record import PromptRecord, learned_from
from midthought.trainer.rollouts import check_source
from midthought.trainer.run import Run, RunStage
from midthought.trainer.sft import Demonstrate, supervised_learner, take_steps
from midthought.trainer.trainer import Trainer
from midthought.types import Trajectory

Stage = Literal["sft", "rl", "all", "evaluate"]
MetricsOf = Callable[[EvaluationArm, list[Trajectory]], Mapping[str, float]]
"""Returns the metrics of an arm's episodes, by keys that have the arm's name."""
_OTHER_TOKENIZER = (
    "the transcripts changed, or another version of midthought began the run: continue with what it began with, or start a new "
    "run"
)


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
    run: Run = field(init=False)
    folder: RunFolder = field(init=False)
    progress: RunProgress = field(init=False)
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

    def _build_data(self) -> None:  # noqa: B027
        """Writes what the tasks need, for example a memory; by default nothing."""

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

    # -- the script ----------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Does every stage that is not done. Returns the summary. Ctrl-C takes effect after everything is saved."""
        self.run = Run(
            self.path,
            self.config,
            resume=self.resume,
            allow_changes=self.allow_changes,
            console=self.console,
            num_shown=self._evaluation.num_shown,
        )
        assert self.run.folder is not None
        self.folder = self.run.folder
        with storage_errors(self.path, THEN_RESUME), closing(self.run):
            self._open()
            stages = self._stages()
            num_left = sum(num_shown for name, _, num_shown in stages if name not in self.progress.done)
            self.console.num_stages = self.num_data_stages + num_left
            with self.run.stop:
                self._build_data()
                self._open_policy()
                for name, work, _ in stages:
                    self._once(name, work)
                return self._report()

    def _stages(self) -> list[tuple[str, Callable[[], dict[str, Any]], int]]:
        """Returns the stages of the run in their order: name, work, and number of stages on the console."""
        before, after = (functools.partial(self._evaluate, when) for when in ("before", "after"))
        if self.stage == "evaluate":
            return [("after", after, 1)]
        warm_up = ("warmup", self._take_over, 0) if self.stage == "rl" else ("warmup", self._warm_up, 1)
        if self.stage == "sft":
            return [warm_up]
        # an arm with rollouts is trained by a Trainer with a console and a run folder of its own
        arms = [(arm.key, functools.partial(self._compare_with, arm), 1 + arm.is_supervised) for arm in self._arms]
        return [warm_up, ("before", before, 1), (self.rl_stage, self._reinforce, 1), ("after", after, 1), *arms]

    def _once(self, stage: str, work: Callable[[], dict[str, Any]]) -> None:
        """Does a stage unless an earlier process finished it. Lines that an interrupted process wrote are dropped first."""
        if stage in self.progress.done:
            return
        if not self.run.manager(stage).has_any:  # else the checkpoint stores which lines are its own
            self.folder.forget_after(self.progress.log_position)
        try:
            with self.progress.timed(stage):
                metrics = work()
        except BaseException:
            self.progress.save()
            raise
        self.progress.finish(stage, metrics)
        self.run.stop.check()

    def _warm_up(self) -> dict[str, Any]:
        num_steps = self._supervised.num_steps
        learner = supervised_learner(self.policy, self.config, self._supervised, num_steps)
        demonstrations = self._demonstrations(self.config)
        self._take_steps(learner, demonstrations, num_steps, title="Warm-up (SFT)", stage="warmup", log_as="sft")
        self._export("warmup", learner)
        return {}

    def _take_over(self) -> dict[str, Any]:
        """Copies a given policy into the run folder, so that the run needs no files outside it."""
        self._export("warmup")
        return {}

    def _reinforce(self) -> dict[str, Any]:
        stage = RunStage(self.run, self.rl_stage, self.rl_title)
        with self._trainer(self.config, self.tasks, stage, resume=self.resume) as trainer:
            trainer.fit()
            with trainer.meter.phase("saving"):
                self._export("policy", trainer.learner)
        return effort(self.folder, "ppo")

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
            trainer.fit(max_seconds=self.folder.num_seconds("ppo") if arm.same_seconds else None)
        return effort(RunFolder(folder), "ppo")

    def _supervise_arm(self, arm: ControlArm) -> dict[str, float]:
        """Trains the model that the run started from on demonstrations, for as many seconds as warm-up and RL took."""
        of_warmup, seconds = self.folder.num_seconds("sft"), self.folder.num_seconds("sft", "ppo")
        num_steps = round(self._supervised.num_steps * seconds / of_warmup)
        demonstrations = self._demonstrations(arm.settings(self.config))
        self._load(self._beginning)
        learner = supervised_learner(self.policy, self.config, self._supervised, num_steps)
        title = f"Supervised steps of {arm.name}"
        self._take_steps(
            learner, demonstrations, num_steps, title=title, stage=arm.key, log_as=arm.key, max_seconds=seconds
        )
        self._export(f"{arm.folder}/policy", learner)
        return effort(self.folder, arm.key, "num_steps")

    def _report(self) -> dict[str, Any]:
        self.progress.save()
        summary = {**self._metrics(), **self.progress.spent(), "seed": self.config.training.seed}
        self.folder.write_summary(summary)
        report = write_report(self.path)
        arms = [arm.name for arm in self._arms]
        print_results(self.console, self.results_title, self.results, summary, arms)
        self.console.note(f"Report: {report}")
        return summary

    def _metrics(self) -> dict[str, Any]:
        """Returns the metrics of all stages so far, for the summary."""
        return dict(self.progress.metrics)

    # -- the beginning -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Validates all input before anything is written."""
        self.progress = RunProgress(self.folder)
        if self.stage == "evaluate" and not (self.from_path or self.config.model.local_path):
            raise SettingsError("nothing to evaluate: name a run folder, a checkpoint or a Hugging Face model")
        if self.resume:
            self.progress.load()
            self.progress.require_same_beginning(self.stage, self.from_path)
            self.stage = self.progress.stage  # type: ignore[assignment]
            self.from_path = Path(self.progress.from_path) if self.progress.from_path else None
        check_source(before_choice(self.config.inference), self.config.ray)
        source = self._source
        self._choose(source)
        has_own_warmup = self.stage != "rl" and self._supervised.num_steps > 0
        self._arms = chosen_arms(self._evaluation.control_arms, self.control_arms, self.config, has_own_warmup)
        self.run.require_same(self.config)
        self._prepare()
        self.tasks = self._make_tasks(self.config)
        record = PromptRecord.of(self.tasks.prompts, learned_from(self.tasks), self.recipe)
        self.run.require_same(self.config, record)
        self._loaded = self._loaded_from(source) if source else None
        self.run.create()
        checkpoints = [(stage, latest(self.folder.checkpoints_path / stage)) for stage in (self.rl_stage, "warmup")]
        stage, step = next(((stage, step_of(path)) for stage, path in checkpoints if path), ("beginning", 0))
        for change in self.run.record_settings(stage, step):
            self.console.note(f"Changed at {stage} {step}: {change}")
        if not self.resume:
            self.progress.begin(self.stage, self.from_path)
        if self.config.inference.deterministic:
            torch.use_deterministic_algorithms(True)

    def _choose(self, source: str) -> None:
        """Replaces `auto` in the settings, reports the choices, and rejects a run that does not fit in memory."""
        given = is_given(self.config, self.from_path)
        if given:
            require_device(self._device)
        choice = resolve(
            self.config, find_hardware(self._device), source=source, is_given=given, **fixed_in(self.stage)
        )
        self.config, self._choice = choice.config, choice
        if self.stage != "evaluate":
            lines = "\n".join(choice.table()) if given else choice.algorithm
            if lines:
                self.console.note(lines)
            choice.require_possible()

    def _open_policy(self) -> None:
        policy, tokenizer = self._loaded or self._make_policy()
        require_finite(policy, "the model that the run starts from", "Give a model whose weights are finite")
        self.policy, self._loaded = placed(policy, self._device), None
        warn_without_template(tokenizer, "the model")
        self.tasks.open(Renderer(tokenizer, self.config.model.template_arguments))
        if self.stage != "evaluate" and not self.resume:
            examine_before_start(self.tasks.setup(self.policy, self._choice, self.path))

    @property
    def _device(self) -> str:
        model = self.config.model
        return model.device if model.local_path or self.from_path else model.device_of_made

    @property
    def _source(self) -> str:
        """The model to continue with, as `_beginning`: of the newest finished stage, else of the beginning."""
        for finished, folder in ((self.rl_stage, "policy"), ("warmup", "warmup")):
            if finished in self.progress.done:
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
        policy, _ = self._loaded_from(source) if source else self._make_policy()
        self.policy = placed(policy, self._device)

    def _loaded_from(self, source: str) -> tuple[Any, Any]:
        """Loads a causal LM and its tokenizer. Raises ModelPathError naming the path and the remedy."""
        model = self.config.model
        return load_model(source, model.weights_dtype, model.attn_implementation), load_tokenizer(source)

    # -- parts of the stages -------------------------------------------------------------------------------------

    @property
    def _evaluation(self) -> RecipeEvaluation:
        found: RecipeEvaluation = self.config.evaluation  # type: ignore[attr-defined]
        return found

    @property
    def _tokenizer(self) -> Any:
        return self.tasks.renderer.tokenizer

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

    def _take_steps(
        self,
        learner: Learner,
        demonstrations: Demonstrate,
        num_steps: int,
        *,
        title: str,
        stage: str,
        log_as: str,
        max_seconds: float = math.inf,
    ) -> None:
        """Takes the supervised steps of `stage` that are left, `num_steps` in all, for at most `max_seconds`."""
        checkpoints, tokenizer = self.run.manager(stage), self._tokenizer
        newest, start = checkpoints.newest() if self.resume else None, 0
        if newest is not None:
            start = int(checkpoints.restore(learner, tokenizer, newest, "stage", _OTHER_TOKENIZER)["step"])
        take_steps(
            learner,
            demonstrations,
            self._supervised,
            self.config,
            start=start,
            num_steps=num_steps,
            title=title,
            console=self.console,
            stop=self.run.stop,
            log=functools.partial(self.folder.log, log_as),
            save=lambda step: checkpoints.save(learner, tokenizer, step, {"stage": stage}),
            checkpoints=checkpoints,
            precision=self.progress.precision,
            on_precision=self._note_precision,
            deadline=time.monotonic() + max_seconds - self.folder.num_seconds(log_as),
        )

    def _note_precision(self, choice: PrecisionChoice) -> None:
        self.progress.precision = choice.precision
        if math.isfinite(choice.speedup):
            self.progress.metrics["warmup.bfloat16_speedup"] = choice.speedup
        self.progress.save()

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
                name = f"{when}.{arm.name}".rstrip(".")
                self.run.add_trajectories(name, 0, done, self.tasks.renderer, self.tasks.is_right)
                self.run.stop.check()
        return found

    def _export(self, name: str, learner: AnyLearner | None = None) -> None:
        """Writes the policy as a Hugging Face folder in the run folder. Adapters that a stage learned are merged into it."""
        path = self.path / name
        require_finite(self.policy, f"{path}")
        if learner is not None and has_adapters(learner.policy):
            merge(learner.policy)
        generation = generation_values(self.tasks.renderer)
        save_model(self.policy, self._tokenizer, path, in_run=True, generation=generation)
        self.folder.expect_folder(name)
        self.policy.name_or_path = str(path)  # the base model that adapters of the next stage name


def find_policy(path: Path, *, before_rl: bool) -> Path:
    """Returns the Hugging Face folder that `--from PATH` means: PATH itself, or a checkpoint's or a run's policy.

    Of a run's two policies, it takes the one after the warm-up if reinforcement learning starts from it (`before_rl`), else the
    last one.
    """
    return policy_folder(path, ("warmup", "policy") if before_rl else ("policy", "warmup"))
