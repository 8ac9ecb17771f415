"""Losses of PPO and related algorithms as pure functions on tensors; `mask` marks policy tokens.

Policy losses are in `policy_losses`. An average is a sum over policy tokens divided by `denominator`: with the denominator of
the whole optimizer step, losses, gradients and metrics of its micro-batches sum to the values of the step, however it is split or
padded. Values outside the mask are never read, even if they are NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from midthought.algo.policy_losses import POLICY_LOSSES, PolicyLossInputs
from midthought.algo.tensors import as_mask, require_one_shape


def masked_average(
    values: Tensor, mask: Tensor, denominator: float | Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Returns the sum of `values` (times `weights`) at the mask, divided by `denominator` (default: number of entries, ≥ 1).

    All shapes are equal; the mask may have any type.
    """
    mask = as_mask(mask)
    if denominator is None:
        denominator = mask.sum().clamp(min=1)
    chosen = values.masked_fill(~mask, 0.0)
    if weights is not None:
        chosen = chosen * weights.masked_fill(~mask, 0.0)
    return chosen.sum() / denominator


def loss_weights(
    mask: Tensor, episodes: Tensor, kind: str, norm_tokens: int | None = None
) -> tuple[Tensor | None, float]:
    """Returns (weights, denominator) of an optimizer step, whose loss is `Σ weight · ℓ / denominator` over policy tokens.
    Weights are split together with the rows, so micro-batches, padding and order do not change the loss.

    `mask` marks policy tokens, `episodes` is the episode of every token, both of one shape. Weights have this shape and are 0
    outside the mask, or None if all are 1. Episodes without a policy token are not counted. Kinds, with verl's names:

    - `token-mean`: all tokens have the same weight: `Σ ℓ / number of tokens` (DAPO, arXiv 2503.14476, eq. 12).
    - `seq-mean-token-mean`: all episodes have the same weight: the mean over episodes of the mean of their tokens (GRPO, arXiv
      2402.03300, eq. 3).
    - `seq-mean-token-sum`: the mean over episodes of the sum of their tokens.
    - `seq-mean-token-sum-norm`: the same, divided by `norm_tokens` (Dr. GRPO, arXiv 2503.20783, section 3.2).

    Raises ValueError for different shapes, or a missing constant.
    """
    mask = as_mask(mask)
    if kind == "token-mean":
        return None, int(mask.sum())
    require_one_shape(mask, episodes=episodes)
    _, episode, lengths = torch.unique(episodes[mask], return_inverse=True, return_counts=True)
    num_episodes = len(lengths)
    if kind == "seq-mean-token-mean":
        weights = torch.zeros(mask.shape, device=mask.device)
        return weights.masked_scatter(mask, 1.0 / lengths[episode]), num_episodes
    if kind == "seq-mean-token-sum":
        return None, num_episodes
    if norm_tokens is None or norm_tokens < 1:
        raise ValueError(f"loss aggregation {kind!r} needs a number of tokens to divide by, got {norm_tokens}")
    return None, num_episodes * norm_tokens


def compute_policy_loss(
    old_log_probs: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio: float = 0.2,
    clip_low: float | None = None,
    clip_high: float | None = None,
    denominator: float | Tensor | None = None,
    dual_clip: float | None = None,
    kind: str = "ppo",
    weights: Tensor | None = None,
    sampled_logprobs: Tensor | None = None,
    options: Mapping[str, float] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the policy loss of this name. Returns (scalar loss, detached metrics), both averaged over policy tokens.

    All shapes are equal; losses with one ratio per row need [B, T]. `clip_low` and `clip_high` are `clip_ratio` if they are
    None. `weights` multiply the token losses, not the metrics. `options`: the loss's own keyword arguments. Raises ValueError
    for an unknown name, different shapes, or a bound that limits nothing.
    """
    mask = as_mask(response_mask, "response_mask")
    clip_low = clip_ratio if clip_low is None else clip_low
    clip_high = clip_ratio if clip_high is None else clip_high
    require_one_shape(mask, old_log_probs=old_log_probs, log_probs=log_probs, advantages=advantages)
    if sampled_logprobs is not None:
        require_one_shape(mask, sampled_logprobs=sampled_logprobs)
    for name, bound in {"clip_low": clip_low, "clip_high": clip_high}.items():
        if not bound >= 0:
            raise ValueError(f"{name} must be 0 or more (the ratio stays above 1 - clip_low), got {bound}")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip must be above 1 or None (no dual clip), got {dual_clip}")
    inputs = PolicyLossInputs(
        old_logprobs=old_log_probs,
        logprobs=log_probs,
        advantages=advantages,
        mask=mask,
        sampled_logprobs=sampled_logprobs,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    losses, metrics = POLICY_LOSSES.find(kind)(inputs, **(options or {}))
    loss = masked_average(losses, mask, denominator, weights)
    return loss, {name: masked_average(values.detach(), mask, denominator) for name, values in metrics.items()}


# -- value and entropy -------------------------------------------------------------------------------------------


def compute_value_loss(
    *,
    vpreds: Tensor,
    old_values: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    cliprange_value: float | None = 0.2,
    denominator: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped value loss: `½ mean(max((V - R)², (V_clip - R)²))` with `V_clip = V_old + clip(V - V_old, ±ε)`.

    Source: PPO2 of OpenAI Baselines, as in verl's `compute_value_loss`. `vpreds` are the new values V. `cliprange_value=None`
    means no clipping. All shapes are equal. Metric: `value_clip_fraction` (tokens whose clipped error is larger). Raises
    ValueError if shapes differ.
    """
    mask = as_mask(response_mask, "response_mask")
    require_one_shape(mask, vpreds=vpreds, old_values=old_values, returns=returns)
    error = torch.where(mask, vpreds - returns, 0.0) ** 2
    if cliprange_value is None:
        return 0.5 * masked_average(error, mask, denominator), {"value_clip_fraction": torch.zeros(())}
    step = torch.where(mask, vpreds - old_values, 0.0).clamp(-cliprange_value, cliprange_value)
    clipped_error = torch.where(mask, old_values + step - returns, 0.0) ** 2
    loss = 0.5 * masked_average(torch.maximum(error, clipped_error), mask, denominator)
    with torch.no_grad():
        fraction = masked_average((clipped_error > error).to(error.dtype), mask, denominator)
    return loss, {"value_clip_fraction": fraction}


def entropy_from_logprobs(logprobs: Tensor) -> Tensor:
    """Returns the entropy in nats, `-Σ p log p`, of distributions given as log-probabilities: [..., V] -> [...].

    A token with log-probability -inf contributes 0.
    """
    return -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(dim=-1)
