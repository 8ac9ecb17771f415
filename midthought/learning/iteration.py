"""One iteration of any algorithm: score, credit, update, and send the new weights to the source of episodes.

The policy's log-probabilities before the update are computed again (`Learner.score`); those that the engine recorded are compared
with them, and used for corrections.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from midthought.config import RecipeConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.credit import without_truncated
from midthought.learning.learned_tokens import LearnedTokens
from midthought.learning.remote_learner import AnyLearner
from midthought.types import Selection, Trajectory

BeforeUpdate = Callable[[Mapping[str, float]], None]
"""Called with the metrics of scoring, before any weight changes. An exception ends the run."""


class WeightReceiver(Protocol):
    """What samples with the policy."""

    def sleep(self) -> None:
        """Releases memory that the learner can use."""
        ...

    def update_weights(self, load: Callable[[], object]) -> None:
        """Uses the new weights from now on. `load` changes the policy in place; nothing is sampled meanwhile."""
        ...


def learn(
    source: WeightReceiver,
    learner: AnyLearner,
    config: RecipeConfig,
    selection: Selection,
    iteration: int,
    before_update: BeforeUpdate | None = None,
    learned: LearnedTokens | None = None,
) -> dict[str, float]:
    """Trains on an iteration's episodes and sends the new weights to the source, which sleeps meanwhile. Returns the metrics.

    If there is nothing to train on, no weight changes: `batch/num_episodes` is 0, and the other metrics show why.
    """
    metrics = {**selection.metrics, "time/rollout_seconds": selection.data.seconds}
    metrics["batch/num_episodes"] = len(selection.usable)
    if selection.usable:
        batch = _batch(selection, config, learned)
        metrics["batch/num_unscored_tokens"] = batch.num_unscored
        source.sleep()
        seconds: dict[str, float] = {}
        critic_only = iteration < config.training.num_critic_warmup_iters
        metrics |= improve(
            learner,
            batch,
            selection.usable,
            critic_only=critic_only,
            before_update=before_update,
            seconds=seconds,
            learned=learned,
        )
        with _phase("weight_update", learner.device, seconds):
            source.update_weights(learner.load_policy)
        metrics |= seconds
    return metrics


@contextmanager
def _phase(name: str, device: torch.device, seconds: dict[str, float]) -> Iterator[None]:
    """Adds the metric of what runs inside to `seconds`. On a CUDA device, it ends when its kernels have."""
    began = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds[f"time/{name}_seconds"] = time.perf_counter() - began


def _batch(selection: Selection, config: RecipeConfig, learned: LearnedTokens | None) -> TokenBatch:
    """Recorded episodes may be demonstrations, if the loss allows it; their sampled log-probabilities are not checked."""
    version = selection.data.policy_version if config.training.max_staleness else None
    demonstrations = selection.is_recorded and config.training.policy_loss in config.training.supervised
    batch = TokenBatch.from_trajectories(
        selection.usable,
        policy_version=version,
        demonstrations=demonstrations,
        slots=None if learned is None else learned.slots(selection.usable),
    )
    return batch.with_fields(ages=-batch.loss_mask.long()) if selection.is_recorded else batch


def improve(
    learner: AnyLearner,
    batch: TokenBatch,
    trajectories: Sequence[Trajectory] = (),
    *,
    critic_only: bool = False,
    before_update: BeforeUpdate | None = None,
    seconds: dict[str, float] | None = None,
    learned: LearnedTokens | None = None,
) -> dict[str, float]:
    """Scores the batch, computes advantages, and updates the models. Returns the metrics.

    If every episode was masked (`mask_truncated_episodes`), there is no update. `trajectories`, from which the batch was made,
    get the critic's `values`: one per turn, NaN if no policy token of the turn is in the batch. `learned` gets the values of its
    tokens; the batch must have its `slots`. `seconds` gets the metrics `time/scoring_seconds` and `time/update_seconds`.
    """
    seconds = {} if seconds is None else seconds
    with _phase("scoring", learner.device, seconds):
        batch, health = learner.score(batch)
        if before_update is not None:
            before_update(health)
        if batch.values is not None:
            values = batch.turn_values()
            for number, trajectory in enumerate(trajectories):
                found = values.get(number, {})
                trajectory.values = [found.get(turn, math.nan) for turn in range(len(trajectory))]
        batch, credit = learner.credit(batch)
        if learner.training.mask_truncated_episodes:
            batch, masked = without_truncated(batch, trajectories)
            credit |= masked
    with _phase("update", learner.device, seconds):
        updated = learner.update(batch, critic_only=critic_only)
        if learned is not None and len(batch):
            learned.fill(batch, learner.pass_values())
    return {**health, **credit, **updated}
