"""PPO's loss on a micro-batch: policy, entropy, KL and value terms, each averaged over the whole optimizer step.

Does not depend on a model: receives the outputs of the forward passes for the policy tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from midthought.algo.losses import compute_value_loss
from midthought.algo.policy_losses import POLICY_LOSSES, PolicyLossInputs
from midthought.algo.shaping import kl_divergence
from midthought.config import TrainingConfig
from midthought.learning.batch import TokenBatch
from midthought.learning.forward import TokenOutputs, spread

VALUE_LOSS_COEF = 0.5
"""Weight of the value loss if policy and critic share a trunk; a separate critic has its own optimizer."""


def ppo_losses(
    outputs: TokenOutputs, micro: TokenBatch, num_tokens: int, *, training: TrainingConfig, denominator: float
) -> dict[str, Tensor]:
    """Returns the loss terms, averaged as the settings say, and metrics, averaged over tokens; `loss` has a gradient.

    `num_tokens`, `denominator`: the policy tokens of the whole step, and the divisor of the policy loss
    (`algo.losses.loss_weights`), so that micro-batches add up. `outputs.values` are the critic's, None without a critic.
    """
    assert outputs.entropy is not None and micro.old_logprobs is not None and micro.advantages is not None
    mask = micro.loss_mask
    weights = None if micro.loss_weights is None else micro.loss_weights[mask]

    def averaged(losses: Tensor) -> Tensor:
        return (losses if weights is None else losses * weights).sum() / denominator

    rows = micro.padded(mask)
    inputs = PolicyLossInputs(
        old_logprobs=micro.padded(micro.old_logprobs),
        logprobs=spread(outputs.logprobs, rows),
        advantages=micro.padded(micro.advantages),
        mask=rows,
        sampled_logprobs=micro.padded(micro.sampled_logprobs),
        clip_low=training.clip_ratio,
        clip_high=training.clip_high,
        dual_clip=training.dual_clip,
    )
    padded, named = POLICY_LOSSES.find(training.policy_loss)(inputs)
    losses = padded[rows]
    if micro.rollout_weights is not None:
        losses = losses * micro.rollout_weights[mask]
    metrics = {name: values.detach()[rows].sum() / num_tokens for name, values in named.items()}
    metrics |= {"policy_loss": averaged(losses), "entropy": outputs.entropy.sum() / num_tokens}
    loss = metrics["policy_loss"] - training.entropy_coef * averaged(outputs.entropy)
    if micro.reference_logprobs is not None and training.kl_loss_coef:
        metrics["kl_loss"] = averaged(_reference_divergence(outputs, micro, training))
        loss = loss + training.kl_loss_coef * metrics["kl_loss"]
    if outputs.values is None:
        return {**metrics, "loss": loss}
    of_critic = value_losses(outputs.values, micro, num_tokens, training=training)
    return {**metrics, **of_critic, "loss": loss + of_critic["loss"]}


def value_losses(values: Tensor, micro: TokenBatch, num_tokens: int, *, training: TrainingConfig) -> dict[str, Tensor]:
    """Returns only the critic's term: `values` [N] at the policy tokens, in row order; `loss` has a gradient."""
    mask = micro.loss_mask
    assert micro.values is not None and micro.returns is not None
    value_loss, metrics = compute_value_loss(
        vpreds=values,
        old_values=micro.values[mask],
        returns=micro.returns[mask],
        response_mask=torch.ones_like(values, dtype=torch.bool),
        cliprange_value=training.cliprange_value,
        denominator=num_tokens,
    )
    return {"value_loss": value_loss, **metrics, "loss": VALUE_LOSS_COEF * value_loss}


def _reference_divergence(outputs: TokenOutputs, micro: TokenBatch, training: TrainingConfig) -> Tensor:
    """Returns the estimated KL divergence from the reference at every policy token: [N]."""
    assert micro.reference_logprobs is not None
    return kl_divergence(outputs.logprobs, micro.reference_logprobs[micro.loss_mask], training.kl_loss_kind)
