"""`Trainer` (also `RayPPOTrainer`): trains a model with PPO and related algorithms, on tasks or in an environment, with tools.

Composes the rooms below and holds no mathematics: rollouts come from a source, updates from a learner.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from midthought.config import ConfigStore
from midthought.engines.background_loop import BackgroundLoop
from midthought.engines.policy_engine import policy_engine
from midthought.env.environment import BaseEnvironment
from midthought.errors import CheckpointError, SettingsError, TrainerClosedError
from midthought.learning.checkpoint import load_checkpoint, save_checkpoint
from midthought.learning.lr_schedule import TrainingSchedule
from midthought.learning.ppo import learn
from midthought.learning.run_checks import RunChecks, check_training, require_finite
from midthought.learning.stopping import StopRequest
from midthought.plan.choices import as_recorded
from midthought.pretrained import save_model
from midthought.report.json_lines import json_value
from midthought.rollout.rollout_batch import RolloutBatch, collect
from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.tokenization import Renderer
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.definition import Tool
from midthought.tools.parsers import ActionParser
from midthought.tools.registry import ToolRegistry
from midthought.trainer.checkpoint_manager import CheckpointManager, is_right
from midthought.trainer.episodes import as_rollout, restore_stream, sort_episodes, stream_state, tell_failures
from midthought.trainer.learners import choose_learner
from midthought.trainer.policy import choose_settings, find_policy, vocabulary_digest
from midthought.trainer.rollouts import (
    MAX_LENGTH,
    PromptBuilder,
    as_call_format,
    check_source,
    make_source,
    make_worker_group,
)
from midthought.trainer.tasks import make_tasks
from midthought.types import RolloutData, Trajectory

_log = logging.getLogger(__name__)


class TrainerCallback:
    """What happens during training, told as it happens: a step, then its validation, then its checkpoint.

    Extend it and override what is wanted. What it raises ends `fit` between two iterations; KeyboardInterrupt, too.
    """

    def on_step(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """An iteration is done; `trainer.iteration` counts them."""

    def on_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """An evaluation is done."""

    def on_save(self, trainer: Trainer, path: Path) -> None:
        """A checkpoint stands at `path`."""


class Trainer:
    """Trains a model in an environment, or on the tasks of a data set, in this process.

    >>> trainer = Trainer(config, env, reward_fn=my_reward)       # doctest: +SKIP
    >>> trainer.fit(num_epochs=3)                                        # doctest: +SKIP

    With `ray.use_ray` the episodes are run by Ray's workers, with `ray.num_learners` its processes learn (docs/cluster.md).

    An episode that breaks (the environment or the reward function raises, takes too long or gives nonsense, NaN among it;
    a prompt that is longer than the model's positions) is a failed one: counted, logged, not learned from. Works inside a
    running event loop (notebooks). With `inference.deterministic`, equal settings give equal runs, figures under `time/`
    apart, as far as the environment's `reset` takes a seed.

    Args:
        config: the settings; a copy is kept, checked as a whole once more.
        env: a `BaseEnvironment`, or a function without parameters that makes one; every episode has its own. A class that
            takes a `config` is given `config.environment`.
        reward_fn: judges an episode instead of the environment (or of exact match on a data set): `f(trajectory)` or
            `f(trajectory, environment)`, plain or `async`, giving a number. On a data set the environment is None.
        dataset: tasks instead of an environment: a list, a JSONL, CSV or Parquet file, or a `datasets.Dataset`.
        model: a loaded causal LM (then its `tokenizer` as well), trained in place. None: `config.model.local_path`, and
            where that is empty a small Qwen3 that is made here.
        tools: what the policy may call.
        call format: how it calls: a name, an `ActionParser` or a `ToolCallFormat`.
        system_prompt: stands before every task; how to call the tools is added to it.
        reward_funcs: several reward functions with weights (see `combine_rewards`), instead of `reward_fn`.
        validation: what `evaluate` uses: tasks (as `dataset`), or an environment (as `env`; None: other starts of `env`).
        callbacks: told of every step, evaluation and checkpoint; one `TrainerCallback`, or several.
        run_path: a run folder for metrics, trajectories, checkpoints and the report. None: nothing is written unasked.
        resume: go on from the newest checkpoint in `run_path`; from the beginning where there is none yet. The KL
            divergence is still measured from the model that is given here, so give the one that the run began with.
        allow_changes: resume with settings that change what is learned; they are recorded with the step. Harmless ones (more
            iterations, intervals, placement) need no permission.

    Raises:
        SettingsError: neither or both of `env` and `dataset`; settings that contradict each other.
        RewardError: a reward function that cannot be called.
        CheckpointError: a run lies at `run_path` already and `resume` is not set.
        OutputPathError: `run_path` holds files that this library did not write.
    """

    def __init__(
        self,
        config: ConfigStore,
        env: BaseEnvironment | Callable[[], BaseEnvironment] | None = None,
        reward_fn: Callable[..., Any] | None = None,
        dataset: Any = None,
        *,
        model: Any = None,
        tokenizer: Any = None,
        tools: ToolRegistry | Iterable[Tool] = (),
        call_format: str | ActionParser | ToolCallFormat = "in_thought",
        system_prompt: str = "",
        reward_funcs: Sequence[Any] = (),
        validation: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
        run_path: str | Path | None = None,
        resume: bool = False,
        allow_changes: bool = False,
    ) -> None:
        self.config = _checked(config)
        recorded = Path(run_path) / "config.yaml" if resume and run_path is not None else None
        if recorded is not None and recorded.is_file():
            self.config = as_recorded(self.config, recorded)
        self.config = choose_settings(self.config, model)
        if resume and run_path is None:
            raise SettingsError("resume=True needs the run folder to go on with: give run_path, too")
        if isinstance(tools, Tool):
            raise SettingsError(f"tools={tools!r:.80}: give a list of them: tools=[{tools.definition.name}]")
        registry = tools if isinstance(tools, ToolRegistry) else ToolRegistry(tools)
        prompts = PromptBuilder(system_prompt, registry, as_call_format(call_format))
        self._tasks = make_tasks(self.config, env, dataset, validation, reward_fn, reward_funcs)
        self._keeping = (
            CheckpointManager(run_path, self.config, resume=resume, allow_changes=allow_changes)
            if run_path is not None
            else None
        )
        self.callbacks = _checked_callbacks(callbacks)
        self.metrics_history: list[dict[str, float]] = []
        """The figures of every iteration, in order; `iteration` counts them from 1."""
        self.iteration = 0
        """Iterations done."""
        newest = self._keeping.newest if self._keeping is not None else None
        self.model, self.tokenizer = find_policy(
            self.config,
            model,
            tokenizer,
            texts=lambda: [*self._tasks.texts(), prompts.instructions()],
            checkpoint=newest,
        )
        require_finite(self.model, "the model that the run starts from", "Give a model whose weights are finite")
        self.renderer = Renderer(self.tokenizer)
        self._tasks.open(self.renderer)
        self.learner = choose_learner(self.model, self.config, self.config.ray, self.num_iters())
        inference, seed = self.config.inference, self.config.training.seed
        model_path = "" if model is not None else self.config.model.local_path
        self._engine = policy_engine(
            self.model,
            self.learner.policy,
            self.renderer,
            inference,
            model_path=model_path,
            max_seq_len=getattr(self.model.config, "max_position_embeddings", None) or MAX_LENGTH,
        )
        shared = self._engine, self.renderer, prompts
        loop = BackgroundLoop("midthought-rollout") if inference.partial_rollouts else None
        worker_group = make_worker_group(
            self.model, self.renderer, inference, self.config.ray, max_seq_len=self._engine.max_seq_len
        )
        where: dict[str, Any] = {"seed": seed, "loop": loop, "worker_group": worker_group}
        self.source = make_source(*shared, self._tasks.episode, inference, **where)
        self._held_out = make_source(*shared, self._tasks.held_out_episode, inference, **where)
        self._pad_token_id = int(self.tokenizer.pad_token_id or 0)
        self._frozen = self.config.frozen()
        self._rollouts: RolloutBatch | None = None
        self._checks = RunChecks(self.config.training)
        self._best = (-math.inf, 0)
        """Reward of the best validation, and its iteration."""
        self._is_closed = False
        if newest is not None:
            self.load_checkpoint(newest)
        if self._keeping is not None:
            self._keeping.begin()

    # -- training ----------------------------------------------------------------------------------------------

    def fit(self, num_epochs: int | None = None) -> list[dict[str, float]]:
        """Train until `num_epochs` epochs are done, those of earlier calls and of a loaded checkpoint counted; the figures
        of all iterations.

        An epoch is a pass over the data set, or `training.num_train_iters_per_epoch` iterations in an environment. None:
        what `training` says. Ctrl-C goes through between two iterations, with a checkpoint where there is a run folder.
        Raises TrainingStoppedError if the run cannot learn (docs/algorithms.md, "When a run is stopped").
        """
        self._require_open()
        if num_epochs is not None and not (isinstance(num_epochs, int) and num_epochs >= 0):
            raise SettingsError(
                f"num_epochs={num_epochs!r}: give a whole number of epochs, or None for what the settings say"
            )
        num_iters = self.num_iters(num_epochs)
        checks = self._checks = RunChecks(self.config.training, self.metrics_history)
        self._frozen = self.config.frozen()
        training = self._frozen.training
        self.learner.set_training(training, TrainingSchedule.from_config(training, num_iters))
        if self.iteration >= num_iters:
            _log.warning("nothing is left to train: %d of %d iterations are done", self.iteration, num_iters)
        with StopRequest() as stop:
            while self.iteration < num_iters:
                data = self.rollout()
                checks.after_iteration(self.train_step(data), data.trajectories)
                is_best = self._validate()
                is_stopped = stop.requested
                is_due = self.iteration % self.config.checkpoint.save_interval == 0 or self.iteration == num_iters
                if self._keeping is not None and (is_best or is_due or is_stopped):
                    self.save_checkpoint()
                if is_stopped:
                    raise KeyboardInterrupt
            checks.after_run()
            if self._keeping is not None:
                self._save_model(self._keeping.run.path / "policy", in_run=True)
                self._keeping.finish(self.metrics_history)
        return self.metrics_history

    def rollout(self) -> RolloutData:
        """The episodes of the next iteration, with their rewards. Asking again gives the same ones from the same weights."""
        self._require_open()
        if self._rollouts is not None and self.source.stream is not None:  # they were taken from it, and it has gone on
            return self._rollouts.data
        self._rollouts = collect(self.source, self._tasks.stream, self._frozen, self.iteration)
        tell_failures(f"iteration {self.iteration + 1}", self._rollouts.data)
        return self._rollouts.data

    def train_step(self, data: RolloutData | Iterable[Trajectory] | None = None) -> dict[str, float]:
        """Learn from episodes: those of the last `rollout`, changed or not, or others (grouped by `Trajectory.group`).

        One iteration is then done; its figures are returned and stand in `metrics_history`. Where nothing can be learned
        from (all failed, no spread) no weight changes and `batch/num_episodes` is 0. SettingsError: there is no episode;
        RecordError: a reward that is not finite, or episodes without anything that a policy sampled.
        """
        self._require_open()
        if data is None:
            if self._rollouts is None:
                raise SettingsError("there is nothing to learn from: call rollout() first, or give episodes")
            data = self._rollouts.data
        began = time.perf_counter()
        rollouts = sort_episodes(as_rollout(data), self._frozen.training, self._rollouts)
        is_own = self._rollouts is not None and data is self._rollouts.data
        before_update = self._checks.before_update if is_own else None
        metrics = learn(
            self.source, self.learner, self._frozen, rollouts, self.iteration, self._pad_token_id, before_update
        )
        metrics |= self._tasks.statistics(rollouts.data.trajectories)
        seconds = rollouts.data.seconds + time.perf_counter() - began
        metrics["time/seconds"] = seconds
        metrics["time/tokens_per_second"] = sum(len(t.token_ids) for t in rollouts.data) / seconds
        self.iteration += 1
        self._rollouts = None
        self.metrics_history.append({"iteration": self.iteration, **metrics})
        if self._keeping is not None:
            self._keeping.log("ppo", self.iteration, metrics)
            self._keeping.show(rollouts.data.trajectories, self.renderer, arm="train", iteration=self.iteration)
        for callback in self.callbacks:
            callback.on_step(self, metrics)
        return metrics

    def evaluate(self, num_episodes: int | None = None) -> dict[str, float]:
        """Greedy episodes on held-out tasks or starts, at most `num_episodes` (None: `training.num_validation_questions`).

        `reward/mean` and its parts, calls, lengths; `exact_match` where tasks have an answer; `env/` statistics.
        SettingsError: a data set without `validation`.
        """
        self._require_open()
        number = self.config.training.num_validation_questions if num_episodes is None else num_episodes
        if number < 1:
            raise SettingsError(f"num_episodes={number}: an evaluation needs at least one episode")
        done = self._held_out.evaluate(self._tasks.held_out(number))
        tell_failures("evaluation", done)
        metrics = rollout_metrics(done) | self._tasks.statistics(done)
        judged = [right for right in (is_right(t) for t in done) if right is not None]
        if judged:
            metrics["exact_match"] = sum(judged) / len(judged)
        if self._keeping is not None:
            self._keeping.log("validation", self.iteration, metrics)
            self._keeping.show(done, self.renderer, arm="validation", iteration=self.iteration)
        for callback in self.callbacks:
            callback.on_evaluation(self, metrics)
        return metrics

    def num_iters(self, num_epochs: int | None = None) -> int:
        """Iterations of so many epochs; None: of the settings."""
        return self.config.training.num_iters(self._tasks.num_tasks, num_epochs)

    def _validate(self) -> bool:
        """Evaluate where it is time to; True where the reward is the best so far."""
        every = self.config.training.validate_every
        if not every or self.iteration % every or not self._tasks.has_held_out:
            return False
        reward = self.evaluate()["reward/mean"]
        is_best = reward > self._best[0]
        if is_best:
            self._best = reward, self.iteration
        return is_best

    # -- keeping -----------------------------------------------------------------------------------------------

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Write weights, optimizer, random states and history; None: into the run folder, where old ones are cleared.

        Raises `OutputPathError` if something other than a checkpoint is at `path`.
        """
        self._require_open()
        if path is None and self._keeping is None:
            raise SettingsError("where to? give save_checkpoint a path, or the trainer a run_path")
        target = Path(path) if path is not None else self._keeping.checkpoint_path(self.iteration)  # type: ignore[union-attr]
        state = {
            "iteration": self.iteration,
            "metrics_history": self.metrics_history,
            "best": self._best,
            "policy_version": self._engine.policy_version,
            "vocabulary": vocabulary_digest(self.tokenizer),
            **(self._keeping.counts() if self._keeping is not None else {}),
            **stream_state(self.source, self._rollouts),
        }
        save_checkpoint(target, self.learner, tokenizer=self.tokenizer, state=json_value(state))
        if path is None and self._keeping is not None:
            self._keeping.clear(self.iteration, best=self._best[1])
        for callback in self.callbacks:
            callback.on_save(self, target)
        return target

    def load_checkpoint(self, path: str | Path) -> None:
        """Go on from a checkpoint, as if nothing had happened since.

        Where it lies in the trainer's own run folder, the metrics and episodes that were written after it are dropped.
        CheckpointError: it is not whole, of another model or tokenizer, or not of this class.
        """
        self._require_open()
        checkpoint = load_checkpoint(path)
        state = checkpoint.state
        if "vocabulary" not in state:
            raise CheckpointError(f"checkpoint {path} was not written by a Trainer; give one of its save_checkpoint")
        if state["vocabulary"] != vocabulary_digest(self.tokenizer):
            raise CheckpointError(
                f"checkpoint {path} has another tokenizer than this trainer; give the trainer the one in {path}/policy"
            )
        checkpoint.restore(self.learner)
        self.iteration = int(state["iteration"])
        self.metrics_history = [
            {name: math.nan if value is None else value for name, value in figures.items()}
            for figures in state["metrics_history"]
        ]
        reward, iteration = state["best"]
        self._best = (-math.inf if reward is None else reward, iteration)
        self._rollouts = None
        self.source.update_weights()
        self._engine.policy_version = int(state["policy_version"])
        restore_stream(self.source, self._tasks.stream, state)
        if self._keeping is not None and self._keeping.holds(path) and "num_metric_lines" in state:
            self._keeping.forget_after(state)

    def save_model(self, path: str | Path) -> None:
        """Write the policy and its tokenizer as a folder that any Hugging Face tool loads.

        Raises `OutputPathError` if something other than a model saved by this library is at `path`.
        """
        self._require_open()
        self._save_model(path)

    def _save_model(self, path: str | Path, *, in_run: bool = False) -> None:
        require_finite(self.learner.policy, f"model {path}")
        save_model(self.learner.policy, self.tokenizer, path, in_run=in_run)

    def cleanup(self) -> None:
        """Close the run folder, end servers and workers that were started, and let go of models, optimizer and caches.

        `metrics_history` stays; what needs a model raises TrainerClosedError from now on. Doing so again is fine.
        """
        if self._keeping is not None:
            self._keeping.run.close()
            self._keeping.run.unlock()
        if self.source is not None:
            self.source.close()
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


def _checked_callbacks(callbacks: Any) -> list[TrainerCallback]:
    given = [callbacks] if isinstance(callbacks, TrainerCallback) or not isinstance(callbacks, Iterable) else callbacks
    given = list(given)
    for callback in given:
        if not isinstance(callback, TrainerCallback):
            raise SettingsError(
                f"callbacks: {callback!r:.80} is no TrainerCallback; extend it (on_step, on_evaluation, on_save), and give "
                "an object, not a class"
            )
    return given


def _checked(config: ConfigStore) -> ConfigStore:
    if not isinstance(config, ConfigStore):
        raise SettingsError(f"config must be a ConfigStore (create_default_config()), got a {type(config).__name__}")
    config = config.merged({})
    check_source(config.inference, config.ray)
    check_training(config.training)
    return config
