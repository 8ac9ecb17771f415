"""`Trainer` (also `RayPPOTrainer`): trains a model with PPO and related algorithms, on tasks or in an environment, with tools.

The only training loop of the package, for library users and recipes. It contains no mathematics: a source runs the rollouts,
a learner computes the updates.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from midthought.checks.examination import ITERATION, MAX_TASKS, VALIDATION, Report, Setup, examine, examine_before_start
from midthought.config import RecipeConfig, settled
from midthought.env.environment import BaseEnvironment
from midthought.env.rewards import named_rewards
from midthought.errors import LearnerLostError, SettingsError, TrainerClosedError, TrainingStoppedError
from midthought.files.regular import value_errors
from midthought.learning.iteration import learn
from midthought.learning.learned_tokens import LearnedTokens
from midthought.learning.optimizer import TrainingSchedule
from midthought.learning.remote_learner import AnyLearner, RemoteLearner
from midthought.models.memory import max_positions
from midthought.models.pretrained import load_tokenizer, require_finite, save_model
from midthought.report.console import Console
from midthought.report.json_lines import json_value
from midthought.rollout.episode_source import EpisodeSource
from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.rollout.selection import RolloutStopped, ShuffledTasks, as_rollout, collect, select, tell_failures
from midthought.rollout.written import PolicyParts
from midthought.tools.call_formats import ActionParser
from midthought.tools.definition import Tool
from midthought.tools.registry import ToolRegistry
from midthought.trainer.arguments import check_length, check_seconds, make_prompts, settle
from midthought.trainer.initial_policy import choose_settings, generation_values, longest_prompt, open_policy
from midthought.trainer.overlapping import beside_engine
from midthought.trainer.prompt_record import PromptRecord, learned_from
from midthought.trainer.result import SupervisedResult, TrainerCallback, TrainingResult, checked_callbacks, history_row
from midthought.trainer.run import Run, RunChecks
from midthought.trainer.sft import read_demonstrations, supervised_settings, train_supervised
from midthought.trainer.sources import AUTO_CALL_FORMAT
from midthought.trainer.tasks import EnvironmentTasks, make_tasks, named_tasks
from midthought.trainer.validation import ToolAnswers, evaluated, evaluation_stage
from midthought.trainer.workers import Workers
from midthought.types import RolloutData, Selection, Task, Trajectory

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
            data set (`gsm8k`, `math`, …; its usual test split is the default `validation`); or a `TrainingTasks` (what recipes
            give), which brings its own environment and reward.
        agent: plays the tasks of `dataset`, instead of one answer each: `f(task, client)`, plain or `async`, calls the policy at
            `client.base_url` (OpenAI Chat) or `client.anthropic_base_url` with `client.api_key` and `client.model`, or starts a
            program with `client.environ()`. All tokens that it was answered are trained on. It returns the reward (a number or
            a `Reward`), or None for the reward that was posted to the session, or else `rewards`. `inference.max_tokens` and
            `max_turns` then limit each answer. Needs the extra `serve` (docs/agents.md).
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
            that is empty, files are written only on request. Or the open `Run` of a recipe.
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
        agent: Callable[[Task, Any], Any] | None = None,
        model: Any = None,
        tokenizer: Any = None,
        tools: ToolRegistry | Iterable[Tool] = (),
        call_format: str | ActionParser = AUTO_CALL_FORMAT,
        system_prompt: str = "",
        describe_tools: bool = True,
        rewards: Any = (),
        algorithm: str | None = None,
        demonstrations: Any = None,
        validation: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
        run_path: str | Path | Run | None = None,
        resume: bool = False,
        allow_changes: bool = False,
        progress: bool = True,
        **settings: Any,
    ) -> None:
        config, note, model, path = settle(
            config,
            settings,
            model=model,
            algorithm=algorithm,
            dataset=dataset,
            run_path=run_path,
            resume=resume,
            names=inspect.signature(Trainer).parameters,
        )
        self._is_created = model is None and not config.model.local_path
        prompts = make_prompts(tools, call_format, system_prompt=system_prompt, describe_tools=describe_tools)
        dataset, validation = named_tasks(dataset, validation)
        rewards = named_rewards(rewards)
        of_tasks = (config, environment, dataset, validation, reward_fn, rewards)
        self._has_agent = agent is not None
        if agent is None:
            self._tasks = make_tasks(*of_tasks)
        else:
            from midthought.trainer.agents import agent_tasks

            self._tasks = agent_tasks(agent, *of_tasks, system_prompt=system_prompt, describes_tools=describe_tools)
        if tokenizer is None and model is None and config.model.local_path:
            tokenizer = load_tokenizer(config.model.local_path)
        self.callbacks = checked_callbacks(callbacks)
        self._longest_prompt = longest_prompt(config, tokenizer, prompts, self._tasks)
        self._choice = choose_settings(config, model, self._longest_prompt)
        self.config = self._choice.config
        console = Console(quiet=not progress)
        options: dict[str, Any] = {"resume": resume, "allow_changes": allow_changes, "console": console}
        self._run = path if isinstance(path, Run) else Run(path, self.config, **options)
        self._demonstrations, self._is_closed = demonstrations, False
        self._workers: Workers | None = None
        try:
            with self._run.disk():
                self._run.require_same(self.config)
                self._run.create()
                self._run.find_checkpoints()
            if note and not self._run.is_shared:
                self._run.console.note(note)
            given = self.config, model, tokenizer, prompts
            self._policy = open_policy(*given, tasks=self._tasks, demonstrations=demonstrations, run=self._run)
            learned = learned_from(self._tasks, agent or environment, reward_fn, rewards)
            self._run.require_same(self.config, PromptRecord.of(self._policy.prompts, learned))
            self._begin()
        except BaseException:
            Trainer.cleanup(self)  # nobody else can end what was started; a subclass is not complete
            raise

    def _begin(self) -> None:
        """Begins at the newest checkpoint of a resumed run, else at iteration 0."""
        self.model, self.tokenizer, self.renderer = self._policy.model, self._policy.tokenizer, self._policy.renderer
        self.call_format = self._policy.prompts.call_format
        """How calls are written."""
        self.iteration = 0
        """Iterations done."""
        self.metrics_history: list[dict[str, float]] = []
        """The metrics of every iteration, in order; `iteration` and `epoch` count from 1. Always there: `total_loss` (`loss`),
        `policy_loss`, `value_loss`; 0 without a critic, or if there was nothing to train on."""
        self._best = (-math.inf, 0)
        """The best validation's metric (`TrainingTasks.best_by`), and its iteration."""
        self._num_iters_per_epoch: int | None = None
        """As given to `fit`; None: by the settings."""
        self._settings = self.config.frozen()
        """A copy of the settings that does not change; `fit` replaces it."""
        beside_engine(self.model, self._settings)  # raises if overlap is requested and not possible
        self._last = 0
        """Number of the last iteration of `fit`, as far as it is known."""
        self._lost_at = -1
        """The iteration in which the learner's process was lost."""
        self._is_fitting = self._is_open_iteration = False
        self._raised: list[BaseException] = []
        """What callbacks have raised in this iteration."""
        self._selection: Selection | None = None
        """The last rollout, if it was not trained on yet."""
        if not self._run.is_shared or self._run.has_sft:  # a recipe begins with `sft`, which needs neither
            self._opened()
        self._checks = RunChecks(self.config, self.renderer, self._policy.prompts, self._run)
        self._run.clear_journal()
        if self._run.newest is not None:
            self.load_checkpoint(self._run.newest)
        with self._run.disk():
            changes = self._run.record_settings(ITERATION, self.iteration)
        for change in changes:
            _log.info("changed at iteration %d: %s", self.iteration, change)

    def _opened(self) -> Workers:
        """Returns the learner and the sources, which are created here if there are none."""
        if self._workers is None:
            self._require_open()
            given = self.config, self._settings, self._policy, self._tasks, self._run
            self._workers = Workers(*given, num_iters=self.num_iters(), longest_prompt=self._longest_prompt)
        return self._workers

    @property
    def learner(self) -> AnyLearner:
        """Computes the updates."""
        return self._opened().learner

    @property
    def source(self) -> EpisodeSource:
        """Runs training episodes."""
        return self._opened().source

    @property
    def held_out(self) -> EpisodeSource:
        """Runs episodes on held-out tasks."""
        return self._opened().held_out

    # -- training ----------------------------------------------------------------------------------------------

    def check(self) -> Report:
        """Examines the run without training: template, tokenizer, calls, reward, lengths, some sampled episodes, memory, disk
        (docs/runs.md). Prints nothing: see `Report.findings`, `skipped`, `to_lines`. `fit` runs the fast checks by itself."""
        self._require_open()
        return examine(self.setup)

    @property
    def setup(self) -> Setup:
        """What the checks before a run look at."""
        untaught = "the model has random weights and no supervised steps behind it; call check() after sft()"
        is_untaught = self._is_created and not self._run.has_sft and not self.iteration
        source = None if self._workers is None else self._workers.source
        allowed = max_positions(self.model.config) or sys.maxsize
        inference = self._settings.inference if source is None else source.parts.inference
        tasks, prompts = self._tasks, self._policy.prompts
        known = tasks.stream.tasks if isinstance(tasks.stream, ShuffledTasks) else []
        return Setup(
            config=self._settings,
            choice=self._choice,
            path=self._run.path,
            all_tasks=known,
            held_out=tasks.held_out(MAX_TASKS) if known and tasks.has_held_out else (),
            draw=functools.partial(tasks.stream.draw, 0),
            has_replies=isinstance(tasks, EnvironmentTasks),
            source=source,
            why_not_sampled=untaught if is_untaught else "",
            policy=PolicyParts(
                model=self.model,
                renderer=self.renderer,
                call_format=prompts.call_format,
                registry=prompts.registry,
                messages=prompts.messages,
                episode=tasks.judge,
                max_seq_len=settled(inference.max_seq_len, allowed),
            ),
        )

    def sft(self, demonstrations: Any = None, *, max_seconds: float | None = None, **settings: Any) -> SupervisedResult:
        """Trains on demonstrations before `fit`: minimizes the negative log-likelihood of what they show the policy to write.

        `demonstrations`: conversations in OpenAI's form (lists of messages; answers may have `tool_calls` and
        `reasoning_content`), rows or a JSONL or Parquet file with a column `messages`, records (`Trajectory`), or a function of
        the task that returns one of them, or only the messages after the task's prompt. None: the constructor's.
        Prompt, call format and loss mask are the same as in `fit`: answers and calls are trained on, results are not.
        `settings`: `num_steps`, `batch_tokens`, `learning_rate`, `warmup_steps` (`SupervisedSection`).
        It takes no more steps after `max_seconds`.

        The policy after these steps is the reference of the KL divergence in `fit`, and adapters are merged into it. Ctrl-C
        takes effect between two steps. A run folder gets the metrics (stage `sft`), checkpoints, and the policy (`warmup/`);
        a resumed run continues the steps, or returns their result if they are done.
        Raises `DataError`, with the row, for a demonstration that cannot be read; `SettingsError` for an unknown setting, and
        after `fit`; `TrainingStoppedError` if the steps diverge.
        """
        self._require_open()
        check_seconds(max_seconds)
        config, run = self.config, self._run
        section = supervised_settings(config, self.model, settings, is_created=self._is_created)
        if run.has_sft:
            _log.warning(
                "sft() takes no further steps: %d are done. For more, train the saved policy in a new Trainer",
                len(run.sft_rows),
            )
            return SupervisedResult(run.sft_rows, run.sft_policy_path)
        if self.iteration:
            raise SettingsError("sft() is called after fit(); call it first, on a new Trainer")
        given = self._demonstrations if demonstrations is None else demonstrations
        given = read_demonstrations(given, self._policy, self._tasks.stream, section.batch_tokens, config.training.seed)
        if self._workers is not None:
            self._workers.close()
            self._workers = None
        self._policy, self._selection = replace(self._policy, path=""), None
        with run.disk():
            train_supervised(self._policy, config, run, section, given, max_seconds)
        if not run.is_shared:
            self._opened()
        return SupervisedResult(run.sft_rows, run.sft_policy_path)

    def fit(
        self,
        num_epochs: int | None = None,
        num_iters_per_epoch: int | None = None,
        *,
        max_seconds: float | None = None,
    ) -> TrainingResult:
        """Trains until `num_epochs` epochs are done; epochs of earlier calls and of a loaded checkpoint count. Returns the
        metrics of all iterations as a `TrainingResult`, which is a list.

        An epoch is a pass over the data set, or 100 iterations in an environment; `num_iters_per_epoch` replaces that length.
        `num_epochs` None: the number in `training`. With `max_seconds` it trains for about that many seconds instead (the sum
        of `time/seconds`: rollouts and updates, no validation; with `training.max_staleness` that of `time/wall`, validation
        included): the number of iterations, and with it the learning rate's schedule, follows from the mean seconds of the
        iterations so far. Ctrl-C takes effect between two iterations, after a checkpoint if there is a run folder; with
        `training.max_staleness` also while episodes are awaited.
        Raises TrainingStoppedError if the run cannot learn (docs/algorithms.md, "When a run is stopped"), and StorageError if the
        run folder's disk is full, read-only or gone; the run can then be resumed.
        """
        self._require_open()
        check_length(num_epochs, num_iters_per_epoch, max_seconds)
        if self._run.newest_sft is not None:
            raise SettingsError("the run was interrupted in its supervised steps; call sft(demonstrations) first")
        if not self._run.is_shared and not self.iteration:
            examine_before_start(self.setup)
        self._num_iters_per_epoch = num_iters_per_epoch
        with self._run.disk():
            self._restart_checks()
            self._settings = self.config.frozen()
            self._opened().follow(self._settings, is_new=not self.iteration)
            self._train(self.num_iters(num_epochs), max_seconds)
        return TrainingResult(self.metrics_history, self._run.policy_path)

    def _train(self, num_iters: int, max_seconds: float | None) -> None:
        """The training loop; then saves the policy and writes the report. A stop, and what a callback raises, takes effect after
        an iteration and its checkpoint."""
        self._last, training = self._end_schedule(num_iters, max_seconds), self._settings.training
        if self.iteration >= self._last:
            _log.warning("nothing is left to train: %d of %d iterations are done", self.iteration, self._last)
        elif self._run.folder is not None:
            self._run.folder.summary_path.unlink(missing_ok=True)  # of the last `fit`: this one is unfinished
        title = f"Training ({training.algorithm or training.adv_estimator})"
        self._stop = stop = self._run.stop
        with stop, self._run.console.stage(title, total=self._last, unit="iterations") as bar:
            bar.start_at(self.iteration)
            self._is_fitting, workers = True, self._opened()
            workers.start(stop)
            try:
                while self.iteration < self._last:
                    try:
                        episodes = self.rollout()
                        metrics = self.train_step(episodes)
                        self._complete(metrics, episodes)
                        self._checks.after_iteration(self.iteration, metrics, episodes.trajectories)
                        bar.advance(1, reward=metrics.get("reward/mean", 0.0), calls=metrics.get("episode/calls", 0.0))
                        self._last = bar.total = self._end_schedule(self._last, max_seconds)
                        is_best = self._validation_is_due() and self._is_best(self.evaluate())
                        is_needed = is_best or stop.requested or self.iteration == self._last
                        is_needed |= workers.needs_checkpoint
                        if self._run.checkpoints.is_due(self.iteration, is_needed=is_needed):
                            self.save_checkpoint()
                    except LearnerLostError as lost:
                        self._begin_again(lost)
                        bar.start_at(self.iteration)
                    except RolloutStopped:
                        if self._run.path is not None:
                            self.save_checkpoint()
                        raise
                    if self._raised:
                        raise self._raised[0]
                    stop.check()
            except BaseException as error:
                for other in (raised for raised in self._raised if raised is not error):
                    error.add_note(f"A callback also raised:\n{''.join(traceback.format_exception(other))}")
                if isinstance(error, TrainingStoppedError):
                    self._run.report()
                raise
            finally:
                self._is_fitting, self._is_open_iteration, self._raised = False, False, []
                workers.pause()
            if (path := self._run.policy_path) is not None:
                self._save_model(path, in_run=True)
                self._run.finish(self.metrics_history)

    def _begin_again(self, lost: LearnerLostError) -> None:
        """Continues from the newest checkpoint, with a new learner; not twice in one iteration."""
        path = self._run.checkpoints.newest() if self._run.path is not None else None
        learner = self.learner
        if path is None or self._lost_at == self.iteration or not isinstance(learner, RemoteLearner):
            raise lost
        if not learner.start_again():
            raise lost
        self._lost_at, self._is_open_iteration = self.iteration, False
        _log.warning("%s: a new one starts at %s", lost, path)
        self.load_checkpoint(path)
        self._end_schedule(self._last, None)
        self._restart_checks()

    def _end_schedule(self, num_iters: int, max_seconds: float | None) -> int:
        """Ends the learning rate's schedule with the last iteration, and returns its number: `num_iters`, or the one that is
        expected to be the last within `max_seconds`, by the mean seconds of the iterations so far."""
        seconds = [row.get("time/wall", row.get("time/seconds", 0.0)) for row in self.metrics_history]
        if max_seconds is not None and any(seconds):
            left = max(0.0, max_seconds - math.fsum(seconds))
            num_iters = self.iteration + round(left * len(seconds) / math.fsum(seconds))
        learner, settings = self.learner, self._settings
        done = self.iteration, learner.num_steps, learner.num_policy_steps
        learner.set_training(settings.training, TrainingSchedule.from_config(settings, num_iters, done))
        return num_iters

    def _complete(self, metrics: Mapping[str, float], episodes: RolloutData) -> None:
        """Counts an iteration and logs it."""
        self.iteration += 1
        self._is_open_iteration = False
        self.metrics_history.append(history_row(self.iteration, metrics, self.num_iters(1)))
        self._selection = None
        self._log(ITERATION, metrics, episodes.trajectories)
        self._tell("on_step", metrics)

    def _tell(self, method: str, given: Any) -> None:
        """Calls this method of the callbacks. In `fit`, what they raise waits until the iteration is saved if that is due."""
        for callback in self.callbacks:
            try:
                getattr(callback, method)(self, given)
            except BaseException as raised:
                waits = self._is_fitting and not isinstance(raised, LearnerLostError)
                if not waits or (isinstance(raised, KeyboardInterrupt) and self._stop.requested):  # a second Ctrl-C
                    raise
                self._raised.append(raised)

    def _validation_is_due(self) -> bool:
        every = self.config.training.validate_every
        return bool(every) and self.iteration % every == 0 and self._tasks.has_held_out

    def _is_best(self, metrics: Mapping[str, float]) -> bool:
        """Judges a validation. Returns whether it is the best so far, and notes it."""
        self._checks.after_validation(self.iteration, metrics)
        is_best = metrics[self._tasks.best_by] > self._best[0]
        if is_best:
            self._best = metrics[self._tasks.best_by], self.iteration
        return is_best

    def _restart_checks(self) -> None:
        rows = ({"stage": ITERATION, "step": row["iteration"], **row} for row in self.metrics_history)
        self._checks.restart(self.config, self._run.rows() or rows)

    def rollout(self) -> RolloutData:
        """Returns the episodes of the next iteration, with their rewards. The same weights give the same episodes again.

        Raises SettingsError outside `fit` with `training.max_staleness`: then episodes depend on the batches that follow.
        """
        self._require_open()
        staleness = self._settings.training.max_staleness
        if staleness and not self._is_fitting:
            raise SettingsError(
                f"rollout() outside fit() with training.max_staleness={staleness}: episodes would go on between your calls; "
                "set it to 0, or call fit()"
            )
        if self._selection is not None and staleness:  # the stream no longer has these episodes
            return self._selection.data
        num_left = self._last - self.iteration - 1
        self._selection = collect(self.source, self._tasks.stream, self._settings, self.iteration, num_left)
        tell_failures(f"iteration {self.iteration + 1}", self._selection.data)
        return self._selection.data

    def train_step(self, data: RolloutData | Iterable[Trajectory] | None = None) -> dict[str, float]:
        """Trains on episodes: from the last `rollout`, changed or not, or others (grouped by `Trajectory.group`).

        This completes one iteration; in `fit`, the loop completes it after `train_step` has returned. Returns its metrics, which
        are also added to `metrics_history`. If there is nothing to train on (all episodes failed, or no group has variance), no
        weight changes and `batch/num_episodes` is 0. Raises SettingsError if there is no episode, and for other episodes of one
        group with different prompts (`select`); RecordError for a reward that is not finite, and without sampled tokens.
        """
        self._require_open()
        if data is None:
            if self._selection is None:
                raise SettingsError("there is nothing to learn from: call rollout() first, or give episodes")
            data = self._selection.data
        episodes = as_rollout(data, self.source.policy_version)
        iteration = self.iteration + 1
        learned = self._run.learned_tokens(episodes.trajectories, iteration)
        try:
            metrics = self._learn(episodes, learned)
        except TrainingStoppedError:
            self._checks.save_episodes(iteration, episodes.trajectories)
            raise
        self._is_open_iteration = self._is_fitting
        if not self._is_fitting:  # in `fit`, the loop completes the iteration
            self._complete(metrics, episodes)
        return metrics

    def _learn(self, episodes: RolloutData, learned: LearnedTokens | None) -> dict[str, float]:
        """Trains on episodes, sends the new weights to the engine, and returns the metrics. `learned` gets values of tokens."""
        began = time.perf_counter()
        batch = select(episodes, self._settings.training, self._selection)
        is_own = self._selection is not None and episodes is self._selection.data
        before_update = functools.partial(self._checks.before_update, self.iteration + 1) if is_own else None
        metrics = rollout_metrics(episodes.trajectories) | learn(
            self.source, self.learner, self._settings, batch, self.iteration, before_update, learned
        )
        metrics |= self._tasks.statistics(episodes.trajectories)
        metrics["episode/tools"] = len(self.source.parts.executor.registry)
        metrics["time/seconds"] = seconds = episodes.seconds + time.perf_counter() - began
        if self._is_fitting:
            metrics |= self._opened().end_batch(metrics)
        metrics["time/tokens_per_second"] = sum(len(each.token_ids) for t in episodes for each in t.segments) / seconds
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
        if tools != "on" and self._has_agent:
            raise SettingsError(f"tools={tools!r} with agent=: the agent runs its tools itself; leave tools out")
        number = self.config.training.num_validation_questions if num_episodes is None else num_episodes
        if not isinstance(number, int) or number < 1:
            raise SettingsError(f"num_episodes={number}: an evaluation needs at least one episode")
        stage = evaluation_stage(tools, sampled=sampled)
        done = evaluated(self.held_out, self._tasks.held_out(number), tools, sampled=sampled)
        tell_failures("evaluation", done)
        metrics = {"episode/count": len(done), **self._tasks.evaluation_metrics(done)}
        self._log(stage, metrics, done)
        if self._run.is_finished:
            self._run.report()
        if stage == VALIDATION:
            self._tell("on_evaluation", metrics)
        return metrics

    def num_iters(self, num_epochs: int | None = None) -> int:
        """Returns the number of iterations in `num_epochs` epochs; None: the number of epochs in the settings."""
        if self._num_iters_per_epoch is not None:
            return self._num_iters_per_epoch * (self.config.training.num_epochs if num_epochs is None else num_epochs)
        return self.config.training.num_iters(self._tasks.num_tasks, num_epochs)

    def _log(self, stage: str, metrics: Mapping[str, float], trajectories: Sequence[Trajectory]) -> None:
        self._run.log(stage, self.iteration, metrics)
        self._run.add_trajectories(stage, self.iteration, trajectories, self.renderer, self._tasks.is_right)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Writes weights, optimizer, random states and history. `path` None: into the run folder, where old ones are deleted.

        Raises `OutputPathError` if something other than a checkpoint is at `path`, and `SettingsError` in a `train_step` that
        `fit` has called, whose iteration is not counted yet.
        """
        self._require_open()
        if self._is_open_iteration:
            raise SettingsError(
                "save_checkpoint() in train_step(): fit counts and logs the iteration after train_step; save in a callback's "
                "on_step, or set checkpoint.save_interval"
            )
        workers, checkpoints, best = self._opened(), self._run.checkpoints, self._best[1]
        state: dict[str, Any] = {"iteration": self.iteration, "metrics_history": self.metrics_history}
        state |= {"best": self._best, **workers.state(with_taken=self._selection is not None, in_run=path is None)}
        target = checkpoints.save(self.learner, self.tokenizer, self.iteration, json_value(state), path=path, best=best)
        workers.keep(state)
        self._tell("on_save", target)
        return target

    def load_checkpoint(self, path: str | Path) -> None:
        """Restores the state at a checkpoint. Training continues as if nothing had happened since.

        If the checkpoint is in the trainer's own run folder, metrics and trajectories that were written after it are dropped.
        Raises CheckpointError if it is damaged, or of another model or tokenizer, or was not written by a trainer.
        """
        self._require_open()
        with self._opened().restored(self._run.checkpoints, path) as state, value_errors(f"checkpoint {path}"):
            self.iteration, rows = int(state["iteration"]), state["metrics_history"]
            self.metrics_history = [history_row(int(row["iteration"]), row, self.num_iters(1)) for row in rows]
            value, iteration = state["best"]
            self._best = -math.inf if value is None else value, iteration
            self._selection = None

    def save_model(self, path: str | Path) -> None:
        """Writes the policy and its tokenizer to a folder that any Hugging Face tool can load.

        Raises `OutputPathError` if something other than a model saved by this library is at `path`.
        """
        self._require_open()
        self._save_model(path)

    def _save_model(self, path: str | Path, *, in_run: bool = False) -> None:
        policy = self.learner.policy
        require_finite(policy, f"model {path}")
        save_model(policy, self.tokenizer, path, in_run=in_run, generation=generation_values(self.renderer))

    def cleanup(self) -> None:
        """Closes the run folder, ends servers and workers that were started, and frees models, optimizer and caches.

        `metrics_history` stays available; methods that need a model then raise TrainerClosedError. A second call does nothing.
        """
        workers, self._is_closed = self._workers, True
        self._workers = self.model = self._policy = self._selection = self._checks = None  # type: ignore
        with contextlib.ExitStack() as ended:  # the last one first, and the others also if it raises
            if workers is not None:
                ended.callback(workers.learner.close)
            ended.callback(self._tasks.close)
            if workers is not None:
                ended.callback(workers.source.close)
            if not self._run.is_shared:
                ended.callback(self._run.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def _require_open(self) -> None:
        if self._is_closed:
            raise TrainerClosedError("this trainer was cleaned up; make a new one, and load a checkpoint to go on")


RayPPOTrainer = Trainer
"""The name of `Trainer` in the setup package."""
