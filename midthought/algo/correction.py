"""What to do where the engine that sampled gives other probabilities than the learner: importance weights, bounded.

The learner recomputes the log-probabilities of what was sampled; `ρ = π_recomputed / π_sampled` is 1 where both compute
alike. Pure functions; knows neither engine nor loss.
"""

from __future__ import annotations

import enum

import torch
from torch import Tensor

from midthought.algo.losses import MAX_LOG_RATIO, masked_average, require_one_shape


class RolloutCorrection(enum.StrEnum):
    """What becomes of the weight ρ that a token's policy loss is multiplied by."""

    TRUNCATED = "truncated"
    """`min(ρ, max)`: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"."""
    MASKED = "masked"
    """`ρ` where `min ≤ ρ ≤ max`, else 0: IcePop (Ring-1T, arXiv 2510.18855); without `min`: Liu et al. 2025, "When Speed
    Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch"."""


class CorrectionLevel(enum.StrEnum):
    """What ρ is the ratio of."""

    TOKEN = "token"
    """Every token has its own."""
    SEQUENCE = "sequence"
    """The whole episode: the product over its policy tokens, the same at each of them."""


def rollout_weights(
    recomputed_logprobs: Tensor,
    sampled_logprobs: Tensor,
    mask: Tensor,
    kind: RolloutCorrection | str,
    *,
    level: CorrectionLevel | str = CorrectionLevel.TOKEN,
    max_weight: float = 2.0,
    min_weight: float = 0.0,
) -> tuple[Tensor, dict[str, float]]:
    """(weights, figures): weights [E, T] at policy tokens, 0 elsewhere; they carry no gradient.

    All tensors are [E, T], a row one episode. Log-ratios are clamped to ± 20. Weights multiply the tokens' losses; the
    number that the loss is divided by counts tokens of weight 0, too. Figures, over policy tokens: `rollout_weight_mean`
    and, for `truncated`, `rollout_truncated_fraction`, for `masked` `rollout_masked_fraction`.
    """
    kind, level = RolloutCorrection(kind), CorrectionLevel(level)
    mask = mask.bool()
    require_one_shape(mask, recomputed_logprobs=recomputed_logprobs, sampled_logprobs=sampled_logprobs)
    log_ratios = torch.where(mask, recomputed_logprobs - sampled_logprobs, 0.0).detach()
    if level is CorrectionLevel.SEQUENCE:
        log_ratios = log_ratios.sum(dim=1, keepdim=True).expand_as(log_ratios)
    ratios = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    outside = ratios > max_weight
    if kind is RolloutCorrection.TRUNCATED:
        weights, name = ratios.clamp(max=max_weight), "rollout_truncated_fraction"
    else:
        outside = outside | (ratios < min_weight)
        weights, name = ratios.masked_fill(outside, 0.0), "rollout_masked_fraction"
    return torch.where(mask, weights, 0.0), {
        "rollout_weight_mean": float(masked_average(weights, mask)),
        name: float(masked_average(outside.to(weights.dtype), mask)),
    }
