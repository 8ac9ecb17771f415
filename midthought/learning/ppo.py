"""The PPO loop on one page: roll out, score, credit, update. Knows no engine, no tool and no task by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from midthought.config import RecipeConfig
from midthought.learning.actor_critic import AnyLearner
from midthought.learning.batch import PPOBatch
from midthought.rollout.rollout_batch import RolloutBatch, RolloutSource, TaskStream, collect
from midthought.rollout.rollout_metrics import rollout_metrics
from midthought.types import RolloutData, Trajectory

OnIteration = Callable[[int, Mapping[str, float], RolloutData], None]
BeforeUpdate = Callable[[Mapping[str, float]], None]
"""Called with the metrics of scoring, before any weight changes; what it raises ends the run."""


def run_ppo(
    source: RolloutSource,
    learner: AnyLearner,
    tasks: TaskStream,
    config: RecipeConfig,
    *,
    pad_token_id: int,
    start: int,
    num_iters: int,
    on_iteration: OnIteration,
    before_update: BeforeUpdate | None = None,
) -> None:
    """Iterations `start` to `num_iters`; `on_iteration(iterations done, metrics, data)` after each.

    What an iteration does follows from the seed, its number and the learner's state alone (and from the episodes that it
    was left, where some are carried over), so a run that is resumed from a checkpoint goes on as if it had never stopped.
    """
    for iteration in range(start, num_iters):
        began = time.perf_counter()
        rollouts = collect(source, tasks, config, iteration)
        metrics = learn(source, learner, config, rollouts, iteration, pad_token_id, before_update)
        seconds = time.perf_counter() - began
        metrics["time/seconds"] = seconds
        metrics["time/tokens_per_second"] = sum(len(t.token_ids) for t in rollouts.data.trajectories) / seconds
        on_iteration(iteration + 1, metrics, rollouts.data)


def learn(
    source: RolloutSource,
    learner: AnyLearner,
    config: RecipeConfig,
    rollouts: RolloutBatch,
    iteration: int,
    pad_token_id: int,
    before_update: BeforeUpdate | None = None,
) -> dict[str, float]:
    """Learn from an iteration's episodes and hand the new weights to the source; the figures of both.

    An iteration that gave nothing to learn from changes no weights; `batch/num_episodes` is then 0, and the other
    metrics say why.
    """
    metrics = {**rollout_metrics(rollouts.data.trajectories), **rollouts.metrics}
    metrics["time/rollout_seconds"] = rollouts.data.seconds
    metrics["batch/num_episodes"] = len(rollouts.usable)
    if rollouts.usable:
        batch = PPOBatch.from_trajectories(
            rollouts.usable,
            pad_token_id=pad_token_id,
            baselines=rollouts.baselines,
            policy_version=rollouts.data.policy_version if config.inference.partial_rollouts else None,
        )
        critic_only = iteration < config.training.num_critic_warmup_iters
        metrics |= improve(learner, batch, rollouts.usable, critic_only=critic_only, before_update=before_update)
        metrics["batch/num_unscored_tokens"] = batch.num_unscored
        source.update_weights()
    return metrics


def improve(
    learner: AnyLearner,
    batch: PPOBatch,
    trajectories: Sequence[Trajectory] = (),
    *,
    critic_only: bool = False,
    before_update: BeforeUpdate | None = None,
) -> dict[str, float]:
    """Score, credit, update: one iteration's learning.

    `trajectories`, those that the batch was made of, get the critic's `values`: one per turn, NaN where no policy token of
    the turn was learned from.
    """
    batch, health = learner.score(batch)
    if before_update is not None:
        before_update(health)
    if batch.values is not None:
        values = batch.turn_values()
        for number, trajectory in enumerate(trajectories):
            found = values.get(number, {})
            trajectory.values = [found.get(turn, math.nan) for turn in range(len(trajectory))]
    batch, credit = learner.credit(batch)
    return {**health, **credit, **learner.update(batch, critic_only=critic_only)}
