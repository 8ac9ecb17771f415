"""Computes advantages from rewards: KL penalty, then the estimator named in the settings. Does not depend on a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from midthought.algo.advantages import compute_advantage
from midthought.algo.losses import masked_average
from midthought.algo.shaping import KLController, apply_kl_penalty, kl_divergence, rollout_weights, teacher_advantages
from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.types import Trajectory


def credit_batch(
    batch: TokenBatch, training: TrainingConfig, kl_controller: KLController
) -> tuple[TokenBatch, dict[str, float]]:
    """Fills in `advantages` and `returns` of a scored batch; first adds the KL penalty to the rewards.

    Estimators get one padded row per episode with all its segments, so the reward at its end reaches the earlier ones.
    With a teacher, `log π_teacher - log π` is added to the advantages, after they were whitened.

    Metrics: `kl_reference`, `kl_teacher` (k1, nats per token), `kl_coef`, `explained_variance` (1 − Var(R − V) / Var(R); 0
    if the returns do not vary), `value_mean`, `return_mean`.
    """
    if batch.old_logprobs is None:
        raise ValueError("the batch has not been scored: call `score` before `credit`")
    mask, rewards = batch.loss_mask, batch.rewards
    if batch.reference_logprobs is None and (training.kl_coef or training.kl_loss_coef):
        raise ValueError("kl_coef and kl_loss_coef need a reference policy: give the learner one, or set both to 0")
    if batch.teacher_logprobs is None and training.teacher:
        raise ValueError(f"teacher={training.teacher!r}: the learner has no teacher; give it one, or set teacher to ''")
    metrics: dict[str, float] = {}
    if batch.reference_logprobs is not None:
        metrics["kl_coef"] = coef = kl_controller.coef
        logprobs, reference = batch.old_logprobs, batch.reference_logprobs
        rewards, kl = apply_kl_penalty(rewards, logprobs, reference, mask, coef)
        metrics["kl_reference"] = float(masked_average(kl_divergence(logprobs, reference), mask))
        kl_controller.update(float(kl), batch.num_episodes)
    credited = _estimated(batch, rewards, training)
    if batch.values is not None and credited.returns is not None:
        metrics |= _critic_metrics(batch.values[mask], credited.returns[mask])
    if batch.teacher_logprobs is not None:
        credited, metrics["kl_teacher"] = _taught(credited)
    return credited, metrics


def without_truncated(batch: TokenBatch, trajectories: Sequence[Trajectory]) -> tuple[TokenBatch, dict[str, float]]:
    """Leaves out the rows of episodes that were ended at a limit; perhaps none is left. `trajectories`: the batch's. Also
    returns the metric `num_masked_episodes`."""
    if len(trajectories) <= int(batch.episodes.max()):
        raise ValueError("mask_truncated_episodes needs the trajectories that the batch was made from")
    reasons = [trajectory.stop_reason for trajectory in trajectories]
    is_truncated = torch.tensor([reason is not None and reason.is_truncated for reason in reasons])[batch.episodes]
    num_masked = len(batch.episodes[is_truncated].unique())
    return batch.select((~is_truncated).nonzero()[:, 0]), {"num_masked_episodes": num_masked}


def _taught(batch: TokenBatch) -> tuple[TokenBatch, float]:
    """Adds the teacher's term to the advantages. Also returns the reverse KL divergence in nats per token, at the sampled
    tokens."""
    assert batch.teacher_logprobs is not None and batch.old_logprobs is not None and batch.advantages is not None
    mask = batch.loss_mask
    divergence = float(masked_average(kl_divergence(batch.old_logprobs, batch.teacher_logprobs), mask))
    added = teacher_advantages(batch.teacher_logprobs, batch.old_logprobs, mask)
    return batch.with_fields(advantages=batch.advantages + added), divergence


def _estimated(batch: TokenBatch, rewards: Tensor, training: TrainingConfig) -> TokenBatch:
    """Fills in the estimator's `advantages` and `returns`; `rewards` [N]. Of an estimator that selects, the batch holds only the
    episodes that were kept (`rollout.selection.select`): their advantages are 1."""
    if training.adv_estimator in training.selecting:
        kept = batch.loss_mask.float()
        return batch.with_fields(advantages=kept, returns=kept)
    advantages, returns = compute_advantage(
        training.adv_estimator,
        batch.by_episode(rewards),
        batch.by_episode(batch.loss_mask),
        values=None if batch.values is None else batch.by_episode(batch.values),
        index=batch.of_episodes(batch.groups),
        turns=batch.by_episode(batch.turns, missing=-1),
        calls=None if batch.calls is None else batch.by_episode(batch.calls, missing=-1),
        gamma=training.gamma,
        lam=training.lam,
    )
    return batch.with_fields(advantages=batch.by_token(advantages), returns=batch.by_token(returns))


def correct_batch(batch: TokenBatch, training: TrainingConfig) -> tuple[TokenBatch, dict[str, float]]:
    """Fills in `rollout_weights` of a scored batch as set by `rollout_correction`. Also returns its metrics.

    `batch/ess`: Kish's effective sample size of the weights w, as a share of the N policy tokens: (Σ w)² / (N Σ w²).
    """
    assert batch.old_logprobs is not None and training.correction != "none"
    weights, metrics = rollout_weights(
        batch.old_logprobs, batch.sampled_logprobs, batch.loss_mask, training.correction, episodes=batch.token_episodes
    )
    of_tokens = weights[batch.loss_mask]
    ess = float(of_tokens.sum() ** 2 / (len(of_tokens) * of_tokens.square().sum()).clamp(min=1e-30))
    return batch.with_fields(rollout_weights=weights), {**metrics, "batch/ess": ess}


def _critic_metrics(values: Tensor, returns: Tensor) -> dict[str, float]:
    variance = float(returns.var(correction=0))
    explained = 1.0 - float((returns - values).var(correction=0)) / variance if variance > 0 else 0.0
    return {"explained_variance": explained, "value_mean": float(values.mean()), "return_mean": float(returns.mean())}
