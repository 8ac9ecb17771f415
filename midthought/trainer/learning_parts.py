"""The parts of a trainer that sample and learn: the learner, the engine, and the sources of episodes.

Does not know about checkpoints on disk, metrics of earlier iterations, or the run folder.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midthought.config import RecipeConfig
from midthought.engines.create import policy_engine
from midthought.learning.adapters import has_adapters
from midthought.learning.learned_tokens import LearnedTokens
from midthought.learning.lr_schedule import TrainingSchedule
from midthought.learning.phase_meter import PhaseMeter
from midthought.learning.ppo import BeforeUpdate, learn
from midthought.learning.run_checks import require_finite
from midthought.models.peft_folders import merge
from midthought.models.pretrained import save_model
from midthought.rollout.rollout_batch import collect
from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.tools.background_loop import BackgroundLoop
from midthought.trainer.episodes import restore_stream, sort_episodes
from midthought.trainer.learners import choose_learner
from midthought.trainer.rollouts import longest_sequence, make_source, make_worker_group
from midthought.trainer.tasks import TrainingTasks
from midthought.trainer.teacher import load_teacher
from midthought.trainer.trained_policy import TrainedPolicy, generation_values
from midthought.types import RolloutBatch, RolloutData


class LearningParts:
    """The learner, the engine, and the sources of training and held-out episodes, which share the engine.

    `config` is a frozen copy of the settings. `fit` replaces it.
    """

    def __init__(self, config: RecipeConfig, policy: TrainedPolicy, tasks: TrainingTasks, num_iters: int) -> None:
        """`num_iters`: the last iteration of the learning rate's schedule."""
        renderer, prompts = policy.renderer, policy.prompts
        self._policy, self._tasks = policy, tasks
        teacher = load_teacher(config, policy.model, policy.tokenizer)
        self.learner = choose_learner(policy.model, config, config.ray, num_iters, teacher)
        self.config = config.frozen()
        inference = self.config.inference
        longest = tasks.longest_prompt(lambda task: len(renderer.prompt(prompts.messages(task))))
        max_seq_len = longest_sequence(longest, inference, policy.model.config)
        self.engine = policy_engine(
            policy.model,
            self.learner.policy,
            renderer,
            inference.changed(backend="local") if config.ray.use_ray else inference,
            model_path=policy.path,
            max_seq_len=max_seq_len,
        )
        make = functools.partial(
            make_source,
            self.engine,
            renderer,
            prompts,
            inference=inference,
            seed=config.training.seed,
            worker_group=make_worker_group(policy.model, renderer, inference, config.ray, max_seq_len=max_seq_len),
            loop=BackgroundLoop("midthought-rollout") if inference.partial_rollouts else None,
        )
        self.source = make(episode=tasks.episode)
        self.held_out = make(episode=tasks.held_out_episode)

    def rollout(self, iteration: int) -> RolloutBatch:
        """Returns the episodes of an iteration: recorded ones if the tasks have them, else sampled."""
        recorded = self._tasks.recorded(self.config.training, iteration)
        return recorded or collect(self.source, self._tasks.stream, self.config, iteration)

    def learn(
        self,
        data: RolloutData,
        rolled_out: RolloutBatch | None,
        iteration: int,
        before_update: BeforeUpdate,
        meter: PhaseMeter,
        learned: LearnedTokens | None = None,
    ) -> dict[str, float]:
        """Trains on the episodes of an iteration (`ppo.learn`). Returns the metrics, with the statistics of the tasks and the
        number of tools.

        `rolled_out`: the last rollout. `before_update` is called only if all episodes are from it and were sampled, not recorded.
        `learned` gets the values of single tokens.
        """
        began = time.perf_counter()
        batch = sort_episodes(data, self.config.training, rolled_out)
        is_own = rolled_out is not None and data is rolled_out.data
        metrics = rollout_metrics(data.trajectories) | learn(
            self.source,
            self.learner,
            self.config,
            batch,
            iteration,
            before_update if is_own and not batch.is_recorded else None,
            meter,
            learned,
        )
        metrics |= self._tasks.training_metrics(data.trajectories)
        metrics["episode/tools"] = len(self.source.parts.executor.registry)
        seconds = data.seconds + time.perf_counter() - began
        metrics["time/seconds"] = seconds
        metrics["time/tokens_per_second"] = sum(len(t.token_ids) for t in data) / seconds
        return metrics

    def end_schedule(self, num_iters: int) -> None:
        """Applies the settings of training. The learning rate's schedule then ends with iteration `num_iters`."""
        training = self.config.training
        self.learner.set_training(training, TrainingSchedule.from_config(training, num_iters))

    def state(self, rolled_out: RolloutBatch | None) -> dict[str, Any]:
        """Returns what a checkpoint holds of the engine and the stream of episodes. `rolled_out`: not trained on yet."""
        stream = self.source.stream
        pending = {} if stream is None else {"stream": stream.state(rolled_out.data if rolled_out is not None else ())}
        return {"policy_version": self.engine.policy_version, **pending}

    def restore(self, state: Mapping[str, Any], *, iteration: int) -> None:
        """Sends the learner's restored weights to the engine, and restores the episodes of a checkpoint."""
        self.source.update_weights()
        self.engine.policy_version = int(state.get("policy_version", iteration))
        restore_stream(self.source, self._tasks.stream, state)

    def save_model(self, path: str | Path, meter: PhaseMeter, *, in_run: bool = False) -> None:
        """Writes the policy and its tokenizer. Raises TrainingStoppedError if a weight is not finite, and as `save_model`."""
        require_finite(self.learner.policy, f"model {path}")
        with meter.phase("saving"):
            generation = generation_values(self._policy.renderer)
            policy = self.learner.policy
            save_model(policy, self._policy.tokenizer, path, in_run=in_run, generation=generation)

    def close(self) -> None:
        """Ends servers and workers, before another trainer of the same model takes their place.

        Adapters, which change no output yet, leave the model.
        """
        self.source.close()
        if has_adapters(self.learner.policy) and not has_adapters(self._policy.model):
            merge(self.learner.policy)
        self.learner.close()
