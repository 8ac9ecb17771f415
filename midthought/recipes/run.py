"""A recipe's run as a script over one `Trainer`: supervised steps, evaluation, reinforcement learning, evaluation, control arms,
report.

Does not depend on a particular task, tool or reward: a recipe defines its tasks, demonstrations and evaluation.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from midthought.checks.examination import examine_before_start
from midthought.config import RecipeConfig, SupervisedSection
from midthought.errors import SettingsError
from midthought.files.regular import THEN_RESUME, storage_errors
from midthought.learning.checkpoint_folder import latest, step_of
from midthought.models.pretrained import load_model, load_tokenizer, placed, policy_folder, require_finite
from midthought.plan.choices import Choice, resolve
from midthought.plan.hardware import Hardware, find_hardware, require_device
from midthought.recipes.control_arms import RFT_ARMS, ControlArm, chosen_arms, effort, print_results
from midthought.recipes.evaluation import EvaluationArm, RecipeTasks, unfinished
from midthought.recipes.recipe import run_of
from midthought.report.console import Console
from midthought.report.html import write_report
from midthought.report.run_folder import RunFolder
from midthought.rollout.episode_source import EpisodeSource
from midthought.tokenization import Renderer
from midthought.trainer.checkpoint import SFT, RunProgress
from midthought.trainer.demonstrations import ShuffledDemonstrations, StepDemonstrations
from midthought.trainer.prompt_record import PromptRecord, learned_from
from midthought.trainer.run import Run
from midthought.trainer.sources import check_source
from midthought.trainer.trainer import Trainer
from midthought.types import Trajectory

Stage = Literal["sft", "rl", "all", "evaluate"]
RL = "rl"
"""The stage of reinforcement learning in `progress.json` and `summary.json`."""
MetricsOf = Callable[[EvaluationArm, list[Trajectory]], Mapping[str, float]]
"""Returns the metrics of an arm's episodes, by keys that have the arm's name."""


@dataclass
class RecipeRun(ABC):
    """One run of a recipe in its folder. `train` runs the stages that are not done."""

    recipe: str
    """Name of the recipe."""
    config: RecipeConfig
    path: Path
    console: Console
    stage: Stage = "all"
    from_path: Path | None = None
    resume: bool = False
    allow_changes: bool = False
    """Permits resuming with settings that change what is learned."""
    run: Run = field(init=False)
    choice: Choice = field(init=False)
    """What replaced `auto` in the settings."""
    tasks: Any = field(init=False)
    """The recipe's `RecipeTasks`."""
    _beginning: tuple[Any, Any] | None = field(init=False)
    """The policy and the tokenizer that the run starts or continues with, until it does."""

    sft_section: ClassVar[str]
    """Name of the section with the settings of the supervised steps."""
    num_data_stages: ClassVar[int] = 0
    """Number of stages on the console of `build_data`."""
    control_arms: ClassVar[Sequence[ControlArm]] = RFT_ARMS
    """The arms that `evaluation.control_arms` may name."""

    # -- what a recipe defines -----------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Checks the recipe's own input and reads its data, before anything is written."""

    @abstractmethod
    def make_tasks(self, config: RecipeConfig) -> RecipeTasks:
        """Returns the tasks for these settings, which are the run's or a control arm's."""

    def build_data(self) -> None:  # noqa: B027
        """Writes what the tasks need, for example a memory; by default nothing."""

    @abstractmethod
    def make_policy(self) -> tuple[Any, Any]:
        """Returns a small, randomly initialized policy and its tokenizer, for a run without a given model."""

    @abstractmethod
    def demonstrations(self, config: RecipeConfig) -> StepDemonstrations:
        """Returns the demonstrations of each supervised step, with the run's settings or those of a control arm."""

    @abstractmethod
    def evaluate(self, when: str, source: EpisodeSource) -> dict[str, Any]:
        """Returns the metrics of the policy whose episodes `source` runs, with the prefix `when`: `before` or `after`
        reinforcement learning, or `arms.NAME` of a control arm, which is evaluated as `after`."""

    # -- the script ----------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Does every stage that is not done. Returns the summary. Ctrl-C takes effect after everything is saved."""
        self.open()
        with storage_errors(self.path, THEN_RESUME), closing(self.run):
            self._start()
            with self.run.stop:
                self.build_data()
                arms = [arm for arm in self._arms if arm.key not in self.progress.done and self.stage in ("rl", "all")]
                self.console.num_stages = self.num_data_stages + len(self._left) + len(arms)
                if self._left:
                    self._do_stages()
                else:
                    self.folder.forget_after(self.progress.log_position)
                for arm in arms:
                    self._once(arm.key, functools.partial(self._compare_with, arm))
                return self._report()

    def _do_stages(self) -> None:
        """The stages of the run's own policy."""
        assert self._beginning is not None
        (policy, tokenizer), self._beginning = self._beginning, None
        if self.stage == "evaluate":
            self.folder.forget_after(self.progress.log_position)
            self._once("after", lambda: self._evaluated("after", policy))
            return
        with self.trainer(self.config, self.tasks, policy, tokenizer, self.run) as trainer:
            if not self.resume:
                examine_before_start(replace(trainer.setup, choice=self.choice))
            self._once(SFT, lambda: self._warm_up(trainer))
            if self.stage == "sft":
                return
            self._once("before", lambda: self.evaluate("before", trainer.held_out))
            self._once(RL, lambda: self._reinforce(trainer))
            self._once("after", lambda: self.evaluate("after", trainer.held_out))

    def _warm_up(self, trainer: Trainer) -> dict[str, float]:
        """Takes the supervised steps. Without any, the policy is copied: the run then needs no files outside its folder."""
        if self.stage == "rl":
            trainer.sft(ShuffledDemonstrations((), 0, ""), **self._steps(0))
        else:
            trainer.sft(self.demonstrations(self.config), **self._steps(self.supervised.num_steps))
        return {}

    def _reinforce(self, trainer: Trainer) -> dict[str, float]:
        trainer.fit()
        self.folder.expect_folder("policy")
        return effort(self.folder, "ppo")

    def _evaluated(self, when: str, policy: Any) -> dict[str, Any]:
        """Evaluates a policy that no trainer holds."""
        with closing(self.tasks.rollouts(policy)) as rollouts:
            return self.evaluate(when, rollouts)

    @property
    def _left(self) -> list[str]:
        """The stages of the run's own policy that are not done."""
        stages = {"sft": [SFT], "evaluate": ["after"]}.get(self.stage) or [SFT, "before", RL, "after"]
        return [stage for stage in stages if stage not in self.progress.done]

    @property
    def _has_own_warmup(self) -> bool:
        """Whether the run takes supervised steps."""
        return self.stage != "rl" and self.supervised.num_steps > 0

    def _steps(self, num_steps: int) -> dict[str, Any]:
        """The settings of so many supervised steps."""
        return {**self.supervised.model_dump(include=set(SupervisedSection.model_fields)), "num_steps": num_steps}

    def _once(self, stage: str, work: Callable[[], dict[str, Any]]) -> None:
        """Does a stage unless an earlier process finished it."""
        if stage in self.progress.done:
            return
        try:
            with self.progress.timed(stage):
                metrics = work()
        except BaseException:
            self.progress.save()
            raise
        self.progress.finish(stage, metrics)
        self.run.stop.check()

    def _compare_with(self, arm: ControlArm) -> dict[str, Any]:
        """Trains a control arm in a run folder of its own, and evaluates it. Returns its metrics with the prefix `arm.key`."""
        self.console.note(f"Control arm {arm.name}: {arm.title}")
        config, folder = arm.settings(self.config), RunFolder(self.path / "arms" / arm.name)
        begin_with = self.load(self.beginning if arm.is_supervised else str(self.path / SFT))
        with self.trainer(config, self.make_tasks(config), *begin_with, folder.path) as trainer:
            del begin_with
            self.run.stop.check()
            if arm.is_supervised:
                seconds = self.folder.num_seconds("sft", "ppo")
                num_steps = round(self.supervised.num_steps * seconds / self.folder.num_seconds("sft"))
                trainer.sft(self.demonstrations(config), max_seconds=seconds, **self._steps(num_steps))
                own = effort(folder, "sft", "num_steps")
            else:
                trainer.fit(max_seconds=self.folder.num_seconds("ppo") if arm.same_seconds else None)
                own = effort(folder, "ppo")
        policy, _ = self.load(str(policy_folder(folder.path)))
        return {**{f"{arm.key}.{key}": value for key, value in own.items()}, **self._evaluated(arm.key, policy)}

    def run_arms(
        self, when: str, source: EpisodeSource, arms: Sequence[EvaluationArm], metrics_of: MetricsOf
    ) -> dict[str, float]:
        """Runs the episodes of every arm. Returns the arms' metrics, with the prefix `when`."""
        found: dict[str, float] = {}
        num_episodes = sum(len(arm.tasks) for arm in arms)
        title = f"Evaluation {'of ' if when.startswith('arms.') else ''}{when.removeprefix('arms.')}"
        with self.console.stage(title, total=num_episodes, unit="episodes") as bar:
            for arm in arms:
                how: dict[str, Any] = {"executor": arm.executor, "temperature": arm.temperature}
                done = source.evaluate(arm.tasks, on_finished=lambda _: bar.advance(1), **how)
                found |= {f"{when}.{key}": value for key, value in metrics_of(arm, done).items()}
                if not arm.name:
                    found[f"{when}.unfinished"] = unfinished(done)
                name = f"{when}.{arm.name}".rstrip(".")
                self.run.add_trajectories(name, 0, done, self.tasks.renderer, self.tasks.is_right)
                self.run.stop.check()
        return found

    def _report(self) -> dict[str, Any]:
        self.progress.save()
        summary = {**self.progress.metrics, **self.progress.spent(), "seed": self.config.training.seed}
        self.folder.write_summary(summary)
        report = write_report(self.path)
        print_results(self.console, summary, [arm.name for arm in self._arms])
        self.console.note(f"Report: {report}")
        return summary

    # -- the beginning -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Opens the run folder, without writing into it."""
        options = {"resume": self.resume, "allow_changes": self.allow_changes}
        self.run = Run(self.path, self.config, console=self.console, is_shared=True, **options)

    def _start(self) -> None:
        """Validates all input, then creates the run folder."""
        if self.stage == "evaluate" and not (self.from_path or self.config.model.local_path):
            raise SettingsError("nothing to evaluate: name a run folder, a checkpoint or a Hugging Face model")
        if self.resume:
            self._require_same_beginning()
            self.stage = self.progress.stage  # type: ignore[assignment]
            self.from_path = Path(self.progress.from_path) if self.progress.from_path else None
        source = str(self.path / SFT) if SFT in self.progress.done else self.beginning
        check_source(self.config.inference, self.config.ray, self.config.training.max_staleness)
        self.choose(source)
        if self.stage != "evaluate":
            if self.is_given:
                self.console.note("\n".join(self.choice.table()))
            self.choice.require_possible()
        names = self.config.evaluation.control_arms  # type: ignore[attr-defined]
        self._arms = chosen_arms(names, self.control_arms, self.config, self._has_own_warmup)
        self.run.require_same(self.config)
        self.prepare()
        self.tasks = self.make_tasks(self.config)
        record = PromptRecord.of(self.tasks.prompts, learned_from(self.tasks), self.recipe)
        self.run.require_same(self.config, record)
        self._require_learned_prompts(record)
        self._beginning = self.load(source) if self._left else None
        self.run.create()
        checkpoints = [(stage, latest(self.folder.checkpoints_path / stage)) for stage in ("ppo", "sft")]
        stage, step = next(((stage, step_of(path)) for stage, path in checkpoints if path), ("beginning", 0))
        if not self.resume:
            self.progress.stage, self.progress.is_given = self.stage, self.is_given
            self.progress.from_path = str(self.from_path.resolve()) if self.from_path else None
        for change in self.run.record_settings(stage, step):
            self.console.note(f"Changed at {stage} {step}: {change}")
        if self.config.inference.deterministic:
            torch.use_deterministic_algorithms(True)

    def _require_same_beginning(self) -> None:
        """Raises `SettingsError` if `--stage` or `--from` differs from the start of the run: a resumed run keeps both."""
        began, from_path = self.progress.stage, self.progress.from_path
        if self.stage not in ("all", began):
            raise SettingsError(
                f"--stage {self.stage}: the run in {self.path} began with --stage {began}, and a resumed run keeps to it; leave "
                "--stage out, or give another folder"
            )
        if self.from_path and str(self.from_path.resolve()) != from_path:
            raise SettingsError(
                f"--from {self.from_path}: the run in {self.path} began from {from_path or 'nothing'}, and a resumed run keeps "
                "to it; leave --from out, or give another folder"
            )

    def _require_learned_prompts(self, record: PromptRecord) -> None:
        """Raises `SettingsError` if reinforcement learning would begin with other prompts or tools than its policy learned."""
        run = run_of(self.from_path) if self.from_path is not None else None
        learns_first = self._has_own_warmup or self.stage not in ("rl", "all")
        if run is None or learns_first or self.resume or self.allow_changes:
            return
        if changes := [each for each in record.changes(run) if each.name not in record.learned_from]:
            lines = "".join(f"\n  {change}" for change in changes)
            raise SettingsError(
                f"--from {self.from_path}: its policy learned with other prompts or tools:{lines}\n"
                f"Give the settings of {run / 'config.yaml'}, or --allow-changes"
            )

    def choose(self, source: str, hardware: Hardware | None = None) -> None:
        """Replaces `auto` in the settings, for the model at `source`. `hardware`: None: this machine's. Without reinforcement
        learning there is neither a critic nor a reference."""
        if hardware is None:
            if self.is_given:
                require_device(self.device)
            hardware = find_hardware(self.device)
        without: dict[str, Any] = {"critic": "none", "reference": False, "teacher_shape": None}
        fixed = without if self.stage == "sft" else {}
        self.choice = resolve(self.config, hardware, source=source, is_given=self.is_given, **fixed)
        self.config = self.choice.config

    @property
    def beginning(self) -> str:
        """Path or name of the model that the run starts from; empty: a small one that it creates."""
        if self.from_path is None:
            given = self.config.model.local_path
            folder = Path(given).expanduser()
            if self.stage == "evaluate" and folder.is_dir():  # perhaps a trainer's run, or a copied checkpoint
                return str(policy_folder(folder))
            return given
        policies = ("warmup", "policy") if self.stage == "rl" else ("policy", "warmup")
        return str(policy_folder(self.from_path, policies))

    def load(self, source: str) -> tuple[Any, Any]:
        """Returns the policy at `source`, or the small one that the run starts from, and its tokenizer, which the tasks get, too.
        Raises ModelPathError naming the path and the remedy."""
        model = self.config.model
        if source:
            policy = load_model(source, model.weights_dtype, model.attn_implementation)
            tokenizer = load_tokenizer(source)
        else:
            policy, tokenizer = self.make_policy()
        require_finite(policy, "the model that the run starts from", "Give a model whose weights are finite")
        self.tasks.renderer = Renderer(tokenizer, model.template_arguments)
        return placed(policy, self.device), tokenizer

    @property
    def is_given(self) -> bool:
        """Whether the run starts from a user's model."""
        return bool(self.config.model.local_path)

    @property
    def device(self) -> str:
        """The device of the model."""
        model = self.config.model
        return model.device if model.local_path or self.from_path else model.device_of_made

    # -- parts ---------------------------------------------------------------------------------------------------

    @property
    def supervised(self) -> SupervisedSection:
        """The settings of the supervised steps."""
        found: SupervisedSection = getattr(self.config, self.sft_section)
        return found

    @property
    def progress(self) -> RunProgress:
        return self.run.progress

    @property
    def folder(self) -> RunFolder:
        assert self.run.folder is not None
        return self.run.folder

    def trainer(
        self, config: RecipeConfig, tasks: RecipeTasks, policy: Any, tokenizer: Any, run: Run | Path | None
    ) -> Trainer:
        """Returns a trainer of the policy on these tasks. In a folder of its own it continues what is there."""
        return Trainer(
            config,
            dataset=tasks,
            model=policy,
            tokenizer=tokenizer,
            tools=tasks.prompts.registry,
            call_format=tasks.prompts.call_format,
            system_prompt=tasks.prompts.system_prompt,
            describe_tools=tasks.prompts.describes_tools,
            run_path=run,
            resume=isinstance(run, Path),
            allow_changes=self.allow_changes,
            progress=not self.console.quiet,
        )
