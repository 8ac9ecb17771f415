"""The losses of PPO as pure functions on tensors of any one shape; `mask` says which entries are policy tokens.

Every figure is a sum over masked entries divided by `denominator`: given the policy tokens of the whole optimizer step,
the micro-batches' losses, gradients and metrics add up to those of the step, however it was cut or padded.
What stands outside the mask is never read, not even where it is NaN. Knows no model and no optimizer.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before `exp`, so that one broken token cannot make the loss infinite."""


def masked_average(values: Tensor, mask: Tensor, denominator: float | Tensor | None = None) -> Tensor:
    """Sum of `values` where `mask`, divided by `denominator` (default: the number of masked entries, at least 1)."""
    if denominator is None:
        denominator = mask.sum().clamp(min=1)
    return values.masked_fill(~mask, 0.0).sum() / denominator


def compute_policy_loss(
    old_logprobs: Tensor,
    logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    denominator: float | Tensor | None = None,
    *,
    dual_clip: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate of PPO: the mean of `max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)`, `r = π / π_old`.

    Source: Schulman et al. 2017 (arXiv 1707.06347), equation 7, negated; unequal bounds: DAPO (arXiv 2503.14476), eq.
    10. With `dual_clip` c > 1 the loss of a token with a negative advantage is at most `-c A` (Ye et al. 2020, arXiv
    1912.09729, eq. 5). Shapes: all alike. Returns the scalar loss and detached metrics, averaged like it:
    `clip_fraction` (tokens whose gradient the bounds cut off), `approx_kl` (KL(old‖new) by k3: `r - 1 - log r`),
    `ratio_mean`.
    """
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    advantages = torch.where(mask, advantages, 0.0)
    ratio = log_ratio.exp()
    plain = -ratio * advantages
    clipped = -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    losses = torch.maximum(plain, clipped)
    if dual_clip is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -dual_clip * advantages), losses)
    loss = masked_average(losses, mask, denominator)
    with torch.no_grad():
        metrics = {
            "clip_fraction": masked_average((clipped > plain).to(losses.dtype), mask, denominator),
            "approx_kl": masked_average(ratio - 1.0 - log_ratio, mask, denominator),
            "ratio_mean": masked_average(ratio, mask, denominator),
        }
    return loss, metrics


def compute_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    cliprange_value: float | None = 0.2,
    denominator: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the mean of `max((V - R)², (V_clip - R)²)`, where `V_clip = V_old + clip(V - V_old, ±ε)`.

    Source: the value clipping of OpenAI baselines' PPO2, as verl's `compute_value_loss` has it. `cliprange_value=None`
    leaves the clipping out. Shapes: all alike. Metric: `value_clip_fraction` (tokens where the clipped error is the
    larger).
    """
    error = torch.where(mask, values - returns, 0.0) ** 2
    if cliprange_value is None:
        return 0.5 * masked_average(error, mask, denominator), {"value_clip_fraction": torch.zeros(())}
    step = torch.where(mask, values - old_values, 0.0).clamp(-cliprange_value, cliprange_value)
    clipped_error = torch.where(mask, old_values + step - returns, 0.0) ** 2
    loss = 0.5 * masked_average(torch.maximum(error, clipped_error), mask, denominator)
    with torch.no_grad():
        fraction = masked_average((clipped_error > error).to(error.dtype), mask, denominator)
    return loss, {"value_clip_fraction": fraction}


def entropy_from_logprobs(logprobs: Tensor) -> Tensor:
    """Entropy in nats, `-Σ p log p`, of distributions given as log-probabilities: [..., V] -> [...].

    An impossible token (log-probability -inf) adds nothing.
    """
    return -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(dim=-1)
