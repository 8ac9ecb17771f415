"""`Trainer` (also `RayPPOTrainer`): trains a model with PPO and related algorithms, on tasks or in an environment, with tools.

The only training loop of the package, for library users and recipes. It contains no mathematics: a source runs the rollouts,
a learner computes the updates.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from midthought.checks.before import Report, Setup, examine
from midthought.checks.during import VALIDATION
from midthought.config import RecipeConfig
from midthought.env.environment import BaseEnvironment
from midthought.errors import SettingsError, TrainerClosedError, TrainingStoppedError
from midthought.files.storage_errors import value_errors
from midthought.learning.phase_meter import PhaseMeter
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.definition import Tool
from midthought.tools.parsers import ActionParser
from midthought.tools.registry import ToolRegistry
from midthought.trainer import publication
from midthought.trainer.arguments import check_length, make_prompts, settle
from midthought.trainer.callbacks import TrainerCallback, checked_callbacks
from midthought.trainer.checkup import UNTAUGHT, examine_before_start, setup_of
from midthought.trainer.episodes import as_rollout, tell_failures
from midthought.trainer.fit_loop import FitLoop
from midthought.trainer.held_out import ToolAnswers, evaluated, evaluation_stage
from midthought.trainer.learning_parts import LearningParts
from midthought.trainer.prompt_record import PromptRecord, learned_from
from midthought.trainer.recorded_tasks import make_tasks
from midthought.trainer.result import SupervisedResult, TrainingResult
from midthought.trainer.rollouts import AUTO_CALL_FORMAT
from midthought.trainer.run_checks import RunChecks
from midthought.trainer.run_writer import RunStage, disk_of
from midthought.trainer.sft import SftStage
from midthought.trainer.short_form import named_rewards, named_tasks, require_environment
from midthought.trainer.tasks import TrainingTasks
from midthought.trainer.trained_policy import open_policy
from midthought.trainer.trainer_state import TrainerState, restore_learner, write_trainer_checkpoint
from midthought.types import RolloutBatch, RolloutData, Trajectory

_log = logging.getLogger(__name__)


class Trainer:
    """Trains a model in an environment, or on tasks.

    Examples:
        >>> trainer = Trainer(model="Qwen/Qwen3-0.6B", dataset="gsm8k", tools=[calculate], rewards=["correct"],
        ...                   algorithm="grpo", learning_rate=1e-6)          # doctest: +SKIP
        >>> trainer.fit()                                                    # doctest: +SKIP
        >>> Trainer(config, env, reward_fn=my_reward).fit(num_epochs=3)      # doctest: +SKIP

    Everything runs in this process, except that with `ray.use_ray` Ray workers run the episodes, and with `ray.num_learners`
    Ray processes compute the updates (docs/cluster.md).

    An episode fails if the environment or the reward function raises, takes too long or returns nonsense (NaN included), or if
    its prompt is longer than the model allows. A failed episode is counted, logged, and not trained on. The trainer also works
    inside a running event loop (notebooks). With `inference.deterministic`, equal settings give equal runs, except metrics
    under `time/`, if the environment's `reset` takes a seed.

    Args:
        config: the settings. The trainer keeps a copy and validates it again. None: the defaults.
        environment: a `BaseEnvironment`, or a function without parameters that creates one; every episode has its own. A class
            that takes a `config` receives `config.environment`.
        reward_fn: scores an episode instead of the environment (or of exact match on a data set): `f(trajectory)` or
            `f(trajectory, environment)`, plain or `async`, returning a number. On a data set the environment is None.
        dataset: tasks instead of an environment: a list, a JSONL, CSV or Parquet file, a `datasets.Dataset`, or the name of a
            data set (`gsm8k`, `math`, …; its usual test split is the default `validation`); or recorded episodes with rewards (a
            list of `Trajectory`), which are trained on instead of rollouts; or a `TrainingTasks` (what recipes give), which
            brings its own environment and reward.
        model: a folder, GGUF file or Hugging Face name, or a loaded causal LM (then with its `tokenizer`), trained in place.
            None: `config.model.local_path`, and if that is empty, a small Qwen3 with random weights; then settings that are
            not set have the values of the preset `tiny` (docs/algorithms.md).
        tools: the tools that the policy may call.
        call_format: how calls are written: a name, an `ActionParser` or a `ToolCallFormat`. `auto`: the model's own format
            if its chat template has one, else `in_thought` (docs/first_model.md).
        system_prompt: text before every task.
        describe_tools: whether tool descriptions and call instructions follow the system prompt.
        rewards: several rewards instead of `reward_fn`: names (`correct`, `num_calls`, …), functions, pairs of either with a
            weight, or a mapping of names to weights.
        algorithm: a preset, `training.algorithm`.
        demonstrations: what `sft` learns from, if it is given none.
        validation: what `evaluate` uses: tasks (as `dataset`), or an environment (None: other starts of `environment`).
        callbacks: called after every step, evaluation and checkpoint; one `TrainerCallback`, or several.
        run_path: a run folder for metrics, trajectories, checkpoints and the report. None: `checkpoint.output_dir`, and if
            that is empty, files are written only on request.
            A `RunStage` makes the trainer a stage of a larger run.
        resume: continue from the newest checkpoint in `run_path`, or from the start if there is none yet. The reference
            of the KL divergence is still the model that is given here, so give the one that the run started with.
        allow_changes: resume with settings, prompts, tools, rows, rewards or an environment that change what is learned; they
            are recorded with the step. Harmless ones (more iterations, intervals, placement) need no permission.
        progress: show the progress of `fit` on the terminal.
        settings: further settings by their bare names (`learning_rate=1e-5`), or sections (`training={"batch_size": 8}`). They
            replace values of `config`.

    Raises:
        SettingsError: an unknown name; neither or both of `environment` and `dataset`; settings that contradict each other.
        RewardError: a reward function that cannot be called, or an unknown name of one.
        CheckpointError: `run_path` holds a run already and `resume` is not set.
        OutputPathError: `run_path` holds files that this library did not write.
    """

    def __init__(
        self,
        config: RecipeConfig | None = None,
        environment: BaseEnvironment | Callable[[], BaseEnvironment] | None = None,
        reward_fn: Callable[..., Any] | None = None,
        dataset: Any = None,
        *,
        model: Any = None,
        tokenizer: Any = None,
        tools: ToolRegistry | Iterable[Tool] = (),
        call_format: str | ActionParser | ToolCallFormat = AUTO_CALL_FORMAT,
        system_prompt: str = "",
        describe_tools: bool = True,
        rewards: Any = (),
        algorithm: str | None = None,
        demonstrations: Any = None,
        validation: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
        run_path: str | Path | RunStage | None = None,
        resume: bool = False,
        allow_changes: bool = False,
        progress: bool = True,
        **settings: Any,
    ) -> None:
        require_environment(settings, dataset)
        given = settle(
            config,
            settings,
            model=model,
            algorithm=algorithm,
            run_path=run_path,
            resume=resume,
            needs_environment=not isinstance(dataset, TrainingTasks),
            arguments=Trainer.__init__,
        )
        self.config, self._stage = given.config, given.stage
        prompts = make_prompts(tools, call_format, system_prompt=system_prompt, describe_tools=describe_tools)
        dataset, validation = named_tasks(dataset, validation)
        rewards = named_rewards(rewards)
        self._tasks = make_tasks(self.config, environment, dataset, validation, reward_fn, rewards)
        self._writer = given.open_run(resume=resume, allow_changes=allow_changes)
        self._console = given.console(progress=progress)
        self.callbacks = checked_callbacks(callbacks)
        self._state = TrainerState()
        self._num_iters_per_epoch: int | None = None
        """As given to `fit`; None: by the settings."""
        self._policy = open_policy(
            given,
            tokenizer,
            prompts,
            tasks=self._tasks,
            demonstrations=demonstrations,
            writer=self._writer,
            console=self._console,
            is_format_auto=call_format == AUTO_CALL_FORMAT,
        )
        if self._writer is not None:
            learned = learned_from(self._tasks, environment, reward_fn, rewards)
            self._writer.compare(PromptRecord.of(self._policy.prompts, learned))
        self.model, self.tokenizer, self.renderer = self._policy.model, self._policy.tokenizer, self._policy.renderer
        self.call_format = self._policy.prompts.call_format
        """How calls are written."""
        self.meter = PhaseMeter(self.model)
        """Seconds of each phase's last call."""
        self._choice, self._is_created = given.choice, given.is_model_created
        self._sft = SftStage(given, self._policy.tokenizer, demonstrations, self._console, self._writer)
        self._tasks.open(self.renderer)
        self._open_learning()
        self._rollouts: RolloutBatch | None = None
        self._checks = RunChecks(self.config, self.renderer, self._policy.prompts)
        self._is_closed = False
        if self._writer is not None and self._writer.newest is not None:
            self.load_checkpoint(self._writer.newest)
        if self._writer is not None:
            with disk_of(self._writer, self._console):
                self._writer.record_settings()

    def _open_learning(self) -> None:
        self._parts = LearningParts(self.config, self._policy, self._tasks, self.num_iters())
        self.learner, self.source = self._parts.learner, self._parts.source

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return self._state.iteration

    @iteration.setter
    def iteration(self, number: int) -> None:
        self._state.iteration = number

    @property
    def metrics_history(self) -> list[dict[str, float]]:
        """The metrics of every iteration, in order; `iteration` and `epoch` count from 1. Always there: `total_loss` (`loss`),
        `policy_loss`, `value_loss`; 0 without a critic, or if there was nothing to train on."""
        return self._state.metrics_history

    @metrics_history.setter
    def metrics_history(self, rows: list[dict[str, float]]) -> None:
        self._state.metrics_history = rows

    # -- training ----------------------------------------------------------------------------------------------

    def check(self) -> Report:
        """Examines the run without training: template, tokenizer, calls, reward, lengths, some sampled episodes, memory, disk
        (docs/runs.md). Prints nothing: see `Report.findings`, `skipped`, `to_lines`. `fit` runs the fast checks by itself."""
        self._require_open()
        return examine(self.setup)

    @property
    def setup(self) -> Setup:
        """What the checks before a run look at."""
        path = self._writer.run.path if self._writer is not None else None
        is_untaught = self._is_created and not self._sft.is_done and not self.iteration
        return setup_of(
            self._parts.config,
            self._tasks,
            self._policy,
            source=self.source,
            max_seq_len=self._parts.engine.max_seq_len,
            choice=self._choice,
            path=path,
            why_not_sampled=UNTAUGHT if is_untaught else "",
        )

    def sft(self, demonstrations: Any = None, **settings: Any) -> SupervisedResult:
        """Trains on demonstrations before `fit`: minimizes the negative log-likelihood of what they show the policy to write.

        `demonstrations`: conversations in OpenAI's form (lists of messages; answers may have `tool_calls` and
        `reasoning_content`), rows or a JSONL or Parquet file with a column `messages`, records (`Trajectory`), or a function of
        the task that returns one of them, or only the messages after the task's prompt. None: the constructor's.
        Prompt, call format and loss mask are the same as in `fit`: answers and calls are trained on, results are not.
        `settings`: `num_steps`, `batch_tokens`, `learning_rate`, `warmup_steps`, `mixed_precision` (`SupervisedSection`).

        The policy after these steps is the reference of the KL divergence in `fit`, and adapters are merged into it. Ctrl-C
        takes effect between two steps. A run folder gets the metrics (stage `sft`), checkpoints, and the policy (`warmup/`);
        a resumed run continues the steps, or returns their result if they are done.
        Raises `DataError`, with the row, for a demonstration that cannot be read; `SettingsError` for an unknown setting, and
        after `fit`; `TrainingStoppedError` if the steps diverge.
        """
        self._require_open()
        section = self._sft.settings(settings)
        if self._sft.is_done:
            _log.warning(
                "sft() takes no further steps: %d are done. For more, train the saved policy in a new Trainer",
                len(self._sft.result),
            )
            return self._sft.result
        if self.iteration or self._stage is not None:
            raise SettingsError(
                "sft() is called after fit(), or on the trainer of a recipe; call it first, on a new Trainer"
            )
        demonstrate = self._sft.read(demonstrations, self._policy, section, self._tasks.stream)
        self._parts.close()
        self._policy, self._rollouts = replace(self._policy, path=""), None
        try:
            with disk_of(self._writer, self._console):
                self._sft.run(self.model, section, demonstrate)
        finally:
            self._open_learning()
        return self._sft.result

    def fit(
        self,
        num_epochs: int | None = None,
        num_iters_per_epoch: int | None = None,
        *,
        max_seconds: float | None = None,
    ) -> TrainingResult:
        """Trains until `num_epochs` epochs are done; epochs of earlier calls and of a loaded checkpoint count. Returns the
        metrics of all iterations as a `TrainingResult`, which is a list.

        An epoch is a pass over the data set, or `training.num_train_iters_per_epoch` iterations in an environment;
        `num_iters_per_epoch` replaces that length. None: the number in `training`. With `max_seconds` it trains for about that
        many seconds instead (the sum of `time/seconds`: rollouts and updates, no validation): the number of iterations, and with
        it the learning rate's schedule, follows from the mean seconds of the iterations so far. Ctrl-C takes effect between two
        iterations, after a checkpoint if there is a run folder.
        Raises TrainingStoppedError if the run cannot learn (docs/algorithms.md, "When a run is stopped"), and StorageError if the
        run folder's disk is full, read-only or gone; the run can then be resumed.
        """
        self._require_open()
        check_length(num_epochs, num_iters_per_epoch, max_seconds)
        self._sft.require_finished()
        if self._stage is None and not self.iteration:
            examine_before_start(self.setup)
        self._num_iters_per_epoch = num_iters_per_epoch
        loop = FitLoop(self, self._parts, self._state, self._checks, self._tasks, self._writer, max_seconds=max_seconds)
        with disk_of(self._writer, self._console):
            loop.start(self.num_iters(num_epochs))
            policy_path = loop.run(self._console, self._stage)
        return TrainingResult(self.metrics_history, policy_path)

    def rollout(self) -> RolloutData:
        """Returns the episodes of the next iteration, with their rewards. The same weights give the same episodes again."""
        self._require_open()
        if self._rollouts is not None and self.source.stream is not None:  # the stream no longer has these episodes
            return self._rollouts.data
        with self.meter.phase("sampling"):
            self._rollouts = self._parts.rollout(self.iteration)
        tell_failures(f"iteration {self.iteration + 1}", self._rollouts.data)
        return self._rollouts.data

    def train_step(self, data: RolloutData | Iterable[Trajectory] | None = None) -> dict[str, float]:
        """Trains on episodes: from the last `rollout`, changed or not, or others (grouped by `Trajectory.group`).

        This completes one iteration. Returns its metrics, which are also added to `metrics_history`. If there is nothing to train
        on (all episodes failed, or no group has variance), no weight changes and `batch/num_episodes` is 0. Raises
        SettingsError if there is no episode, RecordError for a reward that is not finite and for episodes without sampled tokens.
        """
        self._require_open()
        if data is None:
            if self._rollouts is None:
                raise SettingsError("there is nothing to learn from: call rollout() first, or give episodes")
            data = self._rollouts.data
        episodes = as_rollout(data)
        writer = self._writer
        learned = writer.learned_tokens(episodes.trajectories, self.iteration + 1) if writer is not None else None
        before_update = functools.partial(self._checks.before_logged_update, writer, self.iteration + 1)
        try:
            metrics = self._parts.learn(episodes, self._rollouts, self.iteration, before_update, self.meter, learned)
        except TrainingStoppedError:
            self._checks.save_episodes(self.iteration + 1, episodes.trajectories)
            raise
        self._state.complete(metrics, self.num_iters(1))
        self._rollouts = None
        self._log("ppo", metrics, "train", episodes.trajectories)
        for callback in self.callbacks:
            callback.on_step(self, metrics)
        return metrics

    def evaluate(
        self, num_episodes: int | None = None, *, sampled: bool = False, tools: ToolAnswers = "on"
    ) -> dict[str, float]:
        """Runs episodes on held-out tasks or starts, at most `num_episodes` (None: `training.num_validation_questions`): greedy
        ones, or `sampled` as in training, but without top-p.

        `tools` shows whether the result depends on them. `off`: every call returns an error. `shuffled`: every valid call returns
        what the same tool returned in another episode (these episodes run first), without this task's answer in it.

        Returns `reward/mean` and its parts, calls, lengths, `exact_match` if tasks have an answer, and `env/` statistics. The
        report shows the last evaluations before and after `fit`. `on_evaluation` of callbacks is called for the greedy ones with
        tools. Raises SettingsError for a data set without `validation`, and if `tools` cannot be switched off or shuffled.
        """
        self._require_open()
        number = self.config.training.num_validation_questions if num_episodes is None else num_episodes
        if not isinstance(number, int) or number < 1:
            raise SettingsError(f"num_episodes={number}: an evaluation needs at least one episode")
        stage = evaluation_stage(tools, sampled=sampled)
        with self.meter.phase("validation"):
            done = evaluated(self._parts.held_out, self._tasks.held_out(number), tools, sampled=sampled)
        tell_failures("evaluation", done)
        metrics = self._tasks.evaluation_metrics(done)
        self._log(stage, metrics, stage, done)
        if self._writer is not None and self._writer.is_finished:
            self._writer.report()
        for callback in self.callbacks if stage == VALIDATION else ():
            callback.on_evaluation(self, metrics)
        return metrics

    def num_iters(self, num_epochs: int | None = None) -> int:
        """Returns the number of iterations in `num_epochs` epochs; None: the number of epochs in the settings."""
        if self._num_iters_per_epoch is not None:
            return self._num_iters_per_epoch * (self.config.training.num_epochs if num_epochs is None else num_epochs)
        return self.config.training.num_iters(self._tasks.num_tasks, num_epochs)

    def _log(self, stage: str, metrics: Mapping[str, float], arm: str, trajectories: Sequence[Trajectory]) -> None:
        if self._writer is not None:
            self._writer.run.log(stage, self.iteration, metrics)
            self._writer.add_trajectories(
                trajectories, self.renderer, arm=arm, iteration=self.iteration, is_right=self._tasks.is_right
            )

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Writes weights, optimizer, random states and history. `path` None: into the run folder, where old ones are deleted.

        Raises `OutputPathError` if something other than a checkpoint is at `path`.
        """
        self._require_open()
        if path is None and self._writer is None:
            raise SettingsError("where to? give save_checkpoint a path, or the trainer a run_path")
        parts = self._parts.state(self._rollouts)
        with self.meter.phase("saving"):
            target = write_trainer_checkpoint(
                Path(path) if path is not None else None, self.learner, self.tokenizer, self._state, parts, self._writer
            )
        for callback in self.callbacks:
            callback.on_save(self, target)
        return target

    def load_checkpoint(self, path: str | Path) -> None:
        """Restores the state at a checkpoint. Training continues as if nothing had happened since.

        If the checkpoint is in the trainer's own run folder, metrics and trajectories that were written after it are dropped.
        Raises CheckpointError if it is damaged, or of another model or tokenizer, or was not written by a trainer.
        """
        self._require_open()
        state = restore_learner(path, self.learner, self.tokenizer, self._writer)
        with value_errors(f"checkpoint {path}"):
            self._state.restore(state, self.num_iters(1))
        self._rollouts = None
        self._parts.restore(state, iteration=self.iteration)

    def save_model(self, path: str | Path) -> None:
        """Writes the policy and its tokenizer to a folder that any Hugging Face tool can load.

        Raises `OutputPathError` if something other than a model saved by this library is at `path`.
        """
        self._require_open()
        self._parts.save_model(path, self.meter)

    def save_for_hub(self, folder: str | Path, *, name: str = "") -> Path:
        """Writes the policy and a model card of the run to a folder, as the function `save_for_hub` does. Needs a `run_path`."""
        return publication.save_for_hub(self._save_policy_in_run(), folder, name=name)

    def push_to_hub(self, repo: str, *, private: bool = False) -> str:
        """Uploads the policy and a model card of the run, as the function `push_to_hub` does. Needs a `run_path`."""
        return publication.push_to_hub(self._save_policy_in_run(), repo, private=private)

    def _save_policy_in_run(self) -> Path:
        """Returns the run folder."""
        self._require_open()
        if self._writer is None or self._writer.policy_path is None:
            raise SettingsError("the model card is written from the run folder; give the trainer a run_path")
        self._parts.save_model(self._writer.policy_path, self.meter, in_run=True)
        return self._writer.run.path

    def cleanup(self) -> None:
        """Closes the run folder, ends servers and workers that were started, and frees models, optimizer and caches.

        `metrics_history` stays available; methods that need a model then raise TrainerClosedError. A second call does nothing.
        """
        if self._writer is not None:
            self._writer.close()
        if self.source is not None:
            self.source.close()
        self._tasks.close()
        if self.learner is not None:
            self.learner.close()
        self.learner = self.source = self.model = self._policy = self._parts = self._rollouts = None  # type: ignore
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def _require_open(self) -> None:
        if self._is_closed:
            raise TrainerClosedError("this trainer was cleaned up; make a new one, and load a checkpoint to go on")


RayPPOTrainer = Trainer
"""The name of `Trainer` in the setup package."""
