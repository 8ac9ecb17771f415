"""`Trainer` (also `RayPPOTrainer`): trains a model with PPO and related algorithms, on tasks or in an environment, with tools.

The only training loop of the package, for library users and recipes. It contains no mathematics: a source runs the rollouts,
a learner computes the updates.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from midthought.argument_names import also_named
from midthought.config import ConfigStore, RecipeConfig, TrainingConfig
from midthought.engines.background_loop import BackgroundLoop
from midthought.engines.create import policy_engine
from midthought.env.environment import BaseEnvironment
from midthought.errors import CheckpointError, SettingsError, TrainerClosedError, TrainingStoppedError
from midthought.float32_head import use_float32_head
from midthought.learning.adapters import has_adapters
from midthought.learning.checkpoint import load_checkpoint, save_checkpoint, step_of
from midthought.learning.lr_schedule import TrainingSchedule
from midthought.learning.phase_meter import PhaseMeter
from midthought.learning.ppo import learn
from midthought.learning.run_checks import check_training, require_finite
from midthought.learning.stopping import StopRequest
from midthought.peft_folders import merge
from midthought.plan.choices import as_recorded
from midthought.plan.engine_choice import before_choice
from midthought.pretrained import save_model
from midthought.report.console import Console
from midthought.report.json_lines import json_value
from midthought.rollout.rollout_batch import RolloutBatch, collect
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.definition import Tool
from midthought.tools.parsers import ActionParser
from midthought.tools.registry import ToolRegistry
from midthought.trainer.callbacks import TrainerCallback, checked_callbacks
from midthought.trainer.demonstrations import DemonstrationReader, ShuffledDemonstrations, demonstrated_words
from midthought.trainer.episodes import as_rollout, restore_stream, sort_episodes, stream_state, tell_failures
from midthought.trainer.learners import choose_learner
from midthought.trainer.policy import choose_preset, choose_settings, find_policy, vocabulary_digest
from midthought.trainer.result import SupervisedResult, TrainingResult
from midthought.trainer.rollouts import (
    AUTO_CALL_FORMAT,
    PromptBuilder,
    as_call_format,
    check_source,
    longest_sequence,
    make_source,
    make_worker_group,
    native_prompts,
)
from midthought.trainer.run_guards import Rollback, RollbackRequest, RunGuards, next_rollback, with_rollbacks
from midthought.trainer.run_writer import RunStage, RunWriter
from midthought.trainer.sft import SftStage, sft_settings, take_over
from midthought.trainer.short_form import merge_settings, named_rewards, named_tasks
from midthought.trainer.task_choice import make_tasks
from midthought.trainer.tasks import TrainingTasks
from midthought.trainer.teacher import load_teacher, make_self_teacher
from midthought.types import RolloutData, Trajectory

_log = logging.getLogger(__name__)


class Trainer:
    """Trains a model in an environment, or on tasks.

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
        env: a `BaseEnvironment`, or a function without parameters that creates one; every episode has its own. A class that
            takes a `config` receives `config.environment`. The setup package's name, `environment`, is accepted, too.
        reward_fn: scores an episode instead of the environment (or of exact match on a data set): `f(trajectory)` or
            `f(trajectory, environment)`, plain or `async`, returning a number. On a data set the environment is None.
        dataset: tasks instead of an environment: a list, a JSONL, CSV or Parquet file, a `datasets.Dataset`, or the name of a
            data set (`gsm8k`, `math`, …; its usual test split is the default `validation`); or recorded episodes with rewards (a
            list of `Trajectory`), which are trained on instead of rollouts; or a `TrainingTasks` (what recipes give), which
            brings its own environment and reward.
        model: a folder or Hugging Face name, or a loaded causal LM (then its `tokenizer` as well), which is trained in place.
            None: `config.model.local_path`, and if that is empty, a small Qwen3 with random weights; then settings that are
            not set have the values of the preset `tiny` (docs/algorithms.md).
        tools: the tools that the policy may call.
        call_format: how calls are written: a name, an `ActionParser` or a `ToolCallFormat`. `auto`: the model's own format
            if its chat template has one, else `in_thought` (docs/chat_templates.md).
        system_prompt: text before every task.
        describe_tools: whether tool descriptions and call instructions follow the system prompt.
        rewards: several rewards instead of `reward_fn`: names (`correct`, `num_calls`, …), functions, pairs of either with a
            weight, or a mapping of names to weights. `reward_funcs` is the same argument.
        algorithm: a preset, `training.algorithm`.
        demonstrations: what `sft` learns from, if it is given none.
        validation: what `evaluate` uses: tasks (as `dataset`), or an environment (as `env`; None: other starts of `env`).
        callbacks: called after every step, evaluation and checkpoint; one `TrainerCallback`, or several.
        run_path: a run folder for metrics, trajectories, checkpoints and the report. None: `checkpoint.output_dir`, and if
            that is empty, files are written only on request.
            A `RunStage` makes the trainer a stage of a larger run.
        resume: continue from the newest checkpoint in `run_path`, or from the start if there is none yet. The reference
            of the KL divergence is still the model that is given here, so give the one that the run started with.
        allow_changes: resume with settings that change what is learned; they are recorded with the step. Harmless ones (more
            iterations, intervals, placement) need no permission.
        progress: show the progress of `fit` on the terminal.
        settings: further settings by their bare names (`learning_rate=1e-5`), or sections (`training={"batch_size": 8}`). They
            replace values of `config`.

    Raises:
        SettingsError: an unknown name; neither or both of `env` and `dataset`; settings that contradict each other.
        RewardError: a reward function that cannot be called, or an unknown name of one.
        CheckpointError: `run_path` holds a run already and `resume` is not set.
        OutputPathError: `run_path` holds files that this library did not write.
    """

    @also_named(environment="env", reward_funcs="rewards")
    def __init__(
        self,
        config: RecipeConfig | None = None,
        env: BaseEnvironment | Callable[[], BaseEnvironment] | None = None,
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
        config, model = merge_settings(
            config, model=model, algorithm=algorithm, settings=settings, arguments=Trainer.__init__
        )
        run_path = run_path or config.checkpoint.output_dir or None
        self._stage = run_path if isinstance(run_path, RunStage) else None
        if resume and isinstance(run_path, str | Path) and (Path(run_path) / "config.yaml").is_file():
            config = as_recorded(config, Path(run_path) / "config.yaml")
        config, preset = choose_preset(config, model) if self._stage is None else (config, "")
        self.config = _checked(config, needs_environment=not isinstance(dataset, TrainingTasks))
        choice = choose_settings(self.config, model)
        self.config = choice.config
        if resume and run_path is None:
            raise SettingsError("resume=True needs the run folder to go on with: give run_path, too")
        if isinstance(tools, Tool):
            raise SettingsError(f"tools={tools!r:.80}: give a list of them: tools=[{tools.definition.name}]")
        registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        prompts = PromptBuilder(system_prompt, registry, as_call_format(call_format), describe_tools)
        dataset, validation = named_tasks(dataset, validation)
        self._tasks = make_tasks(self.config, env, dataset, validation, reward_fn, named_rewards(rewards))
        self._writer = (
            RunWriter(run_path, self.config, resume=resume, allow_changes=allow_changes)
            if run_path is not None
            else None
        )
        self._console = self._stage.console if self._stage is not None else Console(quiet=not progress)
        for note in (preset, choice.algorithm) if self._stage is None else ():
            if note:
                self._console.note(note)
        self.callbacks = checked_callbacks(callbacks)
        self.metrics_history: list[dict[str, float]] = []
        """The metrics of every iteration, in order; `iteration` and `epoch` count from 1. Always there: `total_loss` (`loss`),
        `policy_loss`, `value_loss`; 0 without a critic, or if there was nothing to train on."""
        self._num_iters_per_epoch: int | None = None
        """As given to `fit`; None: by the settings."""
        self.iteration = 0
        """Iterations done."""
        newest = self._writer.newest if self._writer is not None else None
        self.model, self.tokenizer = find_policy(
            self.config,
            model,
            tokenizer,
            texts=lambda: [
                *self._tasks.texts(),
                prompts.instructions(),
                *demonstrated_words(demonstrations, self._tasks.stream, prompts),
            ],
            tokenizer_path=self._writer.tokenizer_path if self._writer is not None else None,
        )
        self._is_created = model is None and not self.config.model.local_path
        self._demonstrations = demonstrations
        self._sft_rows: list[dict[str, float]] | None = None
        """Metrics of the supervised steps; None: they were not taken."""
        if self._writer is not None and self._writer.has_sft:
            take_over(self.model, self._writer.sft_policy_path)
            self._sft_rows = self._writer.sft_rows()
        if self.config.model.float32_head:
            use_float32_head(self.model)
        require_finite(self.model, "the model that the run starts from", "Give a model whose weights are finite")
        self.meter = PhaseMeter(self.model)
        """Seconds and peak memory of the phases so far."""
        self.renderer = Renderer(self.tokenizer, self.config.model.chat_template_kwargs)
        if call_format == AUTO_CALL_FORMAT and registry.definitions():
            prompts, self.renderer, reason = native_prompts(prompts, self.renderer)
            self._console.note(f"Call format: {reason}")
        self.call_format = prompts.call_format
        """How calls are written."""
        self._tasks.open(self.renderer)
        self._prompts = prompts
        self._model_path = "" if model is not None or self._sft_rows is not None else self.config.model.local_path
        self._open_learning()
        self._frozen = self.config.frozen()
        self._rollouts: RolloutBatch | None = None
        self._guards = RunGuards(self.config)
        self._rollbacks: list[Rollback] = []
        self._best = (-math.inf, 0)
        """The best validation's metric (`TrainingTasks.best_by`), and its iteration."""
        self._is_closed = False
        if newest is not None:
            self.load_checkpoint(newest)
        if self._writer is not None:
            self._writer.record_settings()
            self._writer.record_plan(choice if self._stage is None else self._stage.choice, self.meter)

    def _open_learning(self) -> None:
        """Creates the learner, the engine, and the sources of training and held-out episodes, which share the engine."""
        teacher = load_teacher(self.config, self.model, self.tokenizer)
        self.learner = choose_learner(self.model, self.config, self.config.ray, self.num_iters(), teacher)
        prompts = self._prompts
        self._self_teacher = make_self_teacher(self.config, self.model, self.renderer, prompts.messages)
        inference = self.config.frozen().inference
        longest = self._tasks.longest_prompt(lambda task: len(self.renderer.prompt(prompts.messages(task))))
        max_seq_len = longest_sequence(longest, inference, self.model.config)
        self._engine = policy_engine(
            self.model,
            self.learner.policy,
            self.renderer,
            inference.changed(backend="local") if self.config.ray.use_ray else inference,
            model_path=self._model_path,
            max_seq_len=max_seq_len,
        )
        group = make_worker_group(self.model, self.renderer, inference, self.config.ray, max_seq_len=max_seq_len)
        make = functools.partial(
            make_source,
            self._engine,
            self.renderer,
            prompts,
            inference=inference,
            seed=self.config.training.seed,
            loop=BackgroundLoop("midthought-rollout") if inference.partial_rollouts else None,
            worker_group=group,
        )
        self.source = make(episode=self._tasks.episode)
        self._held_out = make(episode=self._tasks.held_out_episode)

    def _close_learning(self) -> None:
        """Releases what `_open_learning` created. Adapters, which change no output yet, leave the model."""
        self.source.close()
        if has_adapters(self.learner.policy) and not has_adapters(self.model):
            merge(self.learner.policy)
        self.learner.close()

    # -- training ----------------------------------------------------------------------------------------------

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
        section = sft_settings(settings, self.config, is_created=self._is_created)
        if self._sft_rows is not None:
            _log.warning("the supervised steps are done: %d of %d", len(self._sft_rows), section.num_steps)
            return SupervisedResult(self._sft_rows, self._sft_policy_path)
        if self.iteration or self._stage is not None:
            raise SettingsError(
                "sft() is called after fit(), or on the trainer of a recipe; call it first, on a new Trainer"
            )
        if has_adapters(self.model):
            raise SettingsError(
                "sft() of a model with adapters of its own: merge them (model.merge_and_unload()) and set lora_rank, or train "
                "the adapters on the demonstrations before"
            )
        given = self._demonstrations if demonstrations is None else demonstrations
        if given is None:
            raise SettingsError("sft() has no demonstrations: give sft(demonstrations) or Trainer(demonstrations=…)")
        longest = getattr(self.model.config, "max_position_embeddings", None) or sys.maxsize
        read = DemonstrationReader(self._prompts, self.renderer, longest).read(given, self._tasks.stream)
        demonstrate = ShuffledDemonstrations(read, section.batch_tokens, f"sft-{self.config.training.seed}")
        stage = SftStage(self.config, self.tokenizer, self._console, self._writer)
        self._close_learning()
        self._rollouts, self._model_path = None, ""
        try:
            self._sft_rows = stage.run(self.model, section, demonstrate)
        finally:
            self._open_learning()
        return SupervisedResult(self._sft_rows, self._sft_policy_path)

    @property
    def _sft_policy_path(self) -> Path | None:
        return self._writer.sft_policy_path if self._writer is not None else None

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
        Raises TrainingStoppedError if the run cannot learn (docs/algorithms.md, "When a run is stopped").
        """
        self._require_open()
        _require_whole(0, num_epochs=num_epochs)
        _require_whole(1, num_iters_per_epoch=num_iters_per_epoch)
        if max_seconds is not None and (num_epochs is not None or not max_seconds > 0):
            raise SettingsError(f"max_seconds={max_seconds}: give a number above 0, and no num_epochs with it")
        if self._writer is not None and self._writer.newest_sft is not None and self._sft_rows is None:
            raise SettingsError("the run was interrupted in its supervised steps; call sft(demonstrations) first")
        self._num_iters_per_epoch = num_iters_per_epoch
        num_iters = self.num_iters(num_epochs)
        training = self._start_guards()
        num_iters = self._end_schedule(num_iters, max_seconds)
        if self.iteration >= num_iters:
            _log.warning("nothing is left to train: %d of %d iterations are done", self.iteration, num_iters)
        title = (
            self._stage.title
            if self._stage is not None
            else f"Training ({training.algorithm or training.adv_estimator})"
        )
        stop = self._stage.stop if self._stage is not None else StopRequest()
        with stop, self._console.stage(title, total=num_iters, unit="iterations") as bar:
            bar.start_at(self.iteration)
            while self.iteration < num_iters:
                is_first = not self.meter.measured
                try:
                    data = self.rollout()
                    metrics = self.train_step(data)
                    self._guards.after_iteration(self.iteration, metrics, data.trajectories)
                    bar.advance(1, reward=metrics["reward/mean"], calls=metrics["episode/calls"])
                    if max_seconds is not None:
                        bar.total = num_iters = self._end_schedule(num_iters, max_seconds)
                    is_best = self._validate()
                except RollbackRequest as request:
                    self._roll_back(request)
                    self._start_guards()
                    num_iters = self._end_schedule(num_iters, max_seconds)
                    bar.start_at(self.iteration)
                    continue
                is_due = self.iteration % self.config.checkpoint.save_interval == 0 or self.iteration == num_iters
                if self._writer is not None and (is_best or is_due or stop.requested):
                    self.save_checkpoint()
                elif self._writer is not None and is_first:
                    self._writer.write_measurements()
                stop.check()
            self._guards.after_run()
            if self._writer is not None and self._writer.is_owner:
                self._save_model(self._writer.run.path / "policy", in_run=True)
                self._writer.finish(self.metrics_history)
        writer = self._writer
        policy_path = writer.run.path / "policy" if writer is not None and writer.is_owner else None
        return TrainingResult(self.metrics_history, policy_path)

    def _end_schedule(self, num_iters: int, max_seconds: float | None) -> int:
        """Ends the learning rate's schedule with iteration `num_iters`, or with the iteration that is expected to be the last
        within `max_seconds`. Returns its number."""
        seconds = [metrics["time/seconds"] for metrics in self.metrics_history]
        if max_seconds is not None and seconds:
            left = max(0.0, max_seconds - math.fsum(seconds))
            num_iters = self.iteration + round(left * len(seconds) / math.fsum(seconds))
        training = self._frozen.training
        self.learner.set_training(training, TrainingSchedule.from_config(training, num_iters))
        return num_iters

    def rollout(self) -> RolloutData:
        """Returns the episodes of the next iteration, with their rewards. The same weights give the same episodes again."""
        self._require_open()
        if self._rollouts is not None and self.source.stream is not None:  # the stream no longer has these episodes
            return self._rollouts.data
        with self.meter.phase("sampling"):
            recorded = self._tasks.recorded(self._frozen.training, self.iteration)
            self._rollouts = recorded or collect(self.source, self._tasks.stream, self._frozen, self.iteration)
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
        began = time.perf_counter()
        rollouts = sort_episodes(as_rollout(data), self._frozen.training, self._rollouts)
        is_own = self._rollouts is not None and data is self._rollouts.data
        before_update = self._before_update if is_own and not rollouts.is_recorded else None
        try:
            metrics = learn(
                self.source,
                self.learner,
                self._frozen,
                rollouts,
                self.iteration,
                before_update,
                self.meter,
                self._self_teacher,
            )
        except TrainingStoppedError:
            self._guards.save_episodes(self.iteration + 1, rollouts.data.trajectories)
            raise
        metrics |= self._tasks.statistics(rollouts.data.trajectories)
        seconds = rollouts.data.seconds + time.perf_counter() - began
        metrics["time/seconds"] = seconds
        metrics["time/tokens_per_second"] = sum(len(t.token_ids) for t in rollouts.data) / seconds
        self.iteration += 1
        self._rollouts = None
        self.metrics_history.append(self._history_row(self.iteration, metrics))
        self._log("ppo", metrics)
        self._log_trajectories("train", rollouts.data.trajectories)
        for callback in self.callbacks:
            callback.on_step(self, metrics)
        return metrics

    def _before_update(self, metrics: Mapping[str, float]) -> None:
        """Asks the guards before any weight changes. The metrics that stop a run are logged as the next iteration's."""
        try:
            self._guards.before_update(metrics)
        except TrainingStoppedError:
            if self._writer is not None:
                self._writer.log("ppo", self.iteration + 1, metrics)
            raise

    def _start_guards(self) -> TrainingConfig:
        """Applies the settings, with the changes of rollbacks, and creates the guards. Returns the settings of training."""
        self._guards = self._make_guards()
        self._frozen = with_rollbacks(self.config, self._rollbacks).frozen()
        if "rollback" in self.config.guards.policies.values() and self._writer is not None and self.iteration == 0:
            self.save_checkpoint()
        return self._frozen.training

    def _roll_back(self, request: RollbackRequest) -> None:
        """Goes back to the last checkpoint before the problem started, with another seed and other settings, and saves it so.

        Raises the request, which then stops the run, if there is no such checkpoint, or after `guards.max_rollbacks`.
        """
        checkpoint = self._writer.checkpoints.before(request.finding.start_step) if self._writer is not None else None
        if checkpoint is None or len(self._rollbacks) >= self.config.guards.max_rollbacks:
            raise request
        rollback = next_rollback(request.finding, self.config, self._rollbacks, step_of(checkpoint))
        rollbacks = [*self._rollbacks, rollback]
        self.load_checkpoint(checkpoint)
        self._set_rollbacks(rollbacks)
        self.save_checkpoint()
        self._guards.record_rollback(rollback)

    def _set_rollbacks(self, rollbacks: list[Rollback]) -> None:
        self._rollbacks = rollbacks
        self.source.reseed(rollbacks[-1].seed if rollbacks else self.config.training.seed)

    def _make_guards(self) -> RunGuards:
        """Creates the guards, which know what the run has logged so far."""
        if self._writer is not None:
            return RunGuards(self.config, self._writer.run.metrics.read(), self._writer.run.path)
        rows = ({"stage": "ppo", "step": row["iteration"], **row} for row in self.metrics_history)
        return RunGuards(self.config, rows)

    def _history_row(self, iteration: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics with what every row of `metrics_history` has."""
        epoch = (iteration - 1) // max(self.num_iters(1), 1) + 1
        losses = {"total_loss": metrics.get("loss", 0.0), "policy_loss": 0.0, "value_loss": 0.0}
        return {"iteration": iteration, "epoch": epoch, **losses, **metrics}

    def evaluate(self, num_episodes: int | None = None) -> dict[str, float]:
        """Runs greedy episodes on held-out tasks or starts, at most `num_episodes` (None: `training.num_validation_questions`).

        Returns `reward/mean` and its parts, calls, lengths, `exact_match` if tasks have an answer, and `env/` statistics. Raises
        SettingsError for a data set without `validation`.
        """
        self._require_open()
        number = self.config.training.num_validation_questions if num_episodes is None else num_episodes
        if number < 1:
            raise SettingsError(f"num_episodes={number}: an evaluation needs at least one episode")
        with self.meter.phase("validation"):
            done = self._held_out.evaluate(self._tasks.held_out(number))
        tell_failures("evaluation", done)
        metrics = self._tasks.evaluation_metrics(done)
        self._log("validation", metrics)
        self._log_trajectories("validation", done)
        for callback in self.callbacks:
            callback.on_evaluation(self, metrics)
        return metrics

    def num_iters(self, num_epochs: int | None = None) -> int:
        """Returns the number of iterations in `num_epochs` epochs; None: the number of epochs in the settings."""
        if self._num_iters_per_epoch is not None:
            return self._num_iters_per_epoch * (self.config.training.num_epochs if num_epochs is None else num_epochs)
        return self.config.training.num_iters(self._tasks.num_tasks, num_epochs)

    def _validate(self) -> bool:
        """Evaluates if it is due. Returns True if the metric `best_by` of the tasks is the best so far."""
        every = self.config.training.validate_every
        if not every or self.iteration % every or not self._tasks.has_held_out:
            return False
        metrics = self.evaluate()
        self._guards.after_validation(self.iteration, metrics)
        value = metrics[self._tasks.best_by]
        is_best = value > self._best[0]
        if is_best:
            self._best = value, self.iteration
        return is_best

    def _log(self, stage: str, metrics: Mapping[str, float]) -> None:
        if self._writer is not None:
            self._writer.log(stage, self.iteration, metrics)

    def _log_trajectories(self, arm: str, trajectories: Sequence[Trajectory]) -> None:
        if self._writer is not None:
            self._writer.add_trajectories(
                trajectories,
                self.renderer.decode,
                arm=arm,
                iteration=self.iteration,
                is_right=self._tasks.is_right,
            )

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Writes weights, optimizer, random states and history. `path` None: into the run folder, where old ones are deleted.

        Raises `OutputPathError` if something other than a checkpoint is at `path`.
        """
        self._require_open()
        if path is None and self._writer is None:
            raise SettingsError("where to? give save_checkpoint a path, or the trainer a run_path")
        state = json_value(
            {
                "iteration": self.iteration,
                "metrics_history": self.metrics_history,
                "best": self._best,
                "policy_version": self._engine.policy_version,
                "vocabulary": vocabulary_digest(self.tokenizer),
                "rollbacks": [asdict(rollback) for rollback in self._rollbacks],
                **stream_state(self.source, self._rollouts),
            }
        )
        target = Path(path) if path is not None else None
        with self.meter.phase("saving"):
            if self._writer is not None:
                target = self._writer.checkpoints.save(
                    self.learner, self.tokenizer, self.iteration, state, path=target, best=self._best[1]
                )
            else:
                assert target is not None
                save_checkpoint(target, self.learner, tokenizer=self.tokenizer, state=state)
        if self._writer is not None:
            self._writer.write_measurements()
        for callback in self.callbacks:
            callback.on_save(self, target)
        return target

    def load_checkpoint(self, path: str | Path) -> None:
        """Restores the state at a checkpoint. Training continues as if nothing had happened since.

        If the checkpoint is in the trainer's own run folder, metrics and trajectories that were written after it are dropped.
        Raises CheckpointError if it is damaged, or of another model or tokenizer, or was not written by a trainer.
        """
        self._require_open()
        checkpoint = load_checkpoint(path)
        state = checkpoint.state
        is_own = self._writer is not None and self._writer.holds(path)
        is_older = is_own and "vocabulary" not in state and "step" in state  # a recipe's, before recipes ran a Trainer
        if "vocabulary" not in state and not is_older:
            raise CheckpointError(f"checkpoint {path} was not written by a Trainer; give one of its save_checkpoint")
        if not is_older and state["vocabulary"] != vocabulary_digest(self.tokenizer):
            raise CheckpointError(
                f"checkpoint {path} has another tokenizer than this trainer; give the trainer the one in {path}/policy"
            )
        checkpoint.restore(self.learner)
        if self._writer is not None and is_own and "num_metric_lines" in state:
            self._writer.checkpoints.forget_after(state)
        self.iteration = int(state["step"] if is_older else state["iteration"])
        history = self._logged_history() if is_older else state["metrics_history"]
        self.metrics_history = [
            self._history_row(
                int(metrics["iteration"]),
                {name: math.nan if value is None else value for name, value in metrics.items()},
            )
            for metrics in history
        ]
        best, iteration = state["best"]
        self._best = (-math.inf if best is None else best, iteration)
        self._rollouts = None
        self._set_rollbacks([Rollback(**row) for row in state.get("rollbacks", [])])
        self.source.update_weights()
        self._engine.policy_version = int(state.get("policy_version", self.iteration))
        restore_stream(self.source, self._tasks.stream, state)

    def _logged_history(self) -> list[dict[str, Any]]:
        """Returns the metrics of every iteration, read from the run folder."""
        assert self._writer is not None
        rows = (row for row in self._writer.run.metrics.read() if row["stage"] == "ppo")
        return [self._history_row(row.pop("step"), row) for row in rows if row.pop("stage")]

    def save_model(self, path: str | Path) -> None:
        """Writes the policy and its tokenizer to a folder that any Hugging Face tool can load.

        Raises `OutputPathError` if something other than a model saved by this library is at `path`.
        """
        self._require_open()
        self._save_model(path)

    def _save_model(self, path: str | Path, *, in_run: bool = False) -> None:
        require_finite(self.learner.policy, f"model {path}")
        with self.meter.phase("saving"):
            save_model(self.learner.policy, self.tokenizer, path, in_run=in_run)

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
        self.learner = self.source = self._held_out = self.model = self._engine = self._rollouts = None  # type: ignore
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


def _require_whole(least: int, **number: int | None) -> None:
    (name, value), *_ = number.items()
    if value is not None and not (isinstance(value, int) and value >= least):
        raise SettingsError(
            f"{name}={value!r}: give a whole number of {least} or more, or None for what the settings say"
        )


def _checked(config: RecipeConfig, *, needs_environment: bool) -> RecipeConfig:
    if not isinstance(config, ConfigStore if needs_environment else RecipeConfig):
        raise SettingsError(f"config must be a ConfigStore (create_default_config()), got a {type(config).__name__}")
    config = config.merged({})
    check_source(before_choice(config.inference), config.ray)
    check_training(config.training)
    return config
