"""Rollout correction: importance weights for tokens whose probabilities differ between inference engine and learner.

The learner recomputes the log-probabilities of the sampled tokens; `ρ = π_recomputed / π_sampled` is 1 if both agree. Pure
functions.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from midthought.algo.losses import masked_average
from midthought.algo.policy_loss import MAX_LOG_RATIO
from midthought.algo.tensors import as_mask, require_one_shape


def rollout_weights(
    recomputed_logprobs: Tensor,
    sampled_logprobs: Tensor,
    mask: Tensor,
    kind: Literal["truncated", "masked"],
    *,
    episodes: Tensor,
    level: Literal["token", "sequence"] = "token",
    max_weight: float = 2.0,
    min_weight: float = 0.0,
) -> tuple[Tensor, dict[str, float]]:
    """Returns (weights, metrics): weights at policy tokens, 0 elsewhere, without gradient.

    All tensors have one shape; `episodes` is the episode of every token. Kinds:

    - `truncated`: `min(ρ, max)`. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    - `masked`: `ρ` if `min ≤ ρ ≤ max`, else 0. IcePop (Ring-1T, arXiv 2510.18855); without `min`: Liu et al. 2025, "When
      Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch".

    Levels: one ratio per token, or one per episode (`sequence`), the product over its policy tokens. Log-ratios are clamped to
    ± 20. Weights multiply the token losses; the denominator of the loss also counts tokens of weight 0. Metrics, over policy
    tokens: `rollout_weight_mean`, and `rollout_truncated_fraction` (`truncated`) or `rollout_masked_fraction` (`masked`). Raises
    ValueError for different shapes.
    """
    mask = as_mask(mask)
    logprobs = {"recomputed_logprobs": recomputed_logprobs, "sampled_logprobs": sampled_logprobs}
    require_one_shape(mask, episodes=episodes, **logprobs)
    log_ratios = torch.where(mask, recomputed_logprobs - sampled_logprobs, 0.0).detach()
    if level == "sequence":
        _, part = torch.unique(episodes, return_inverse=True)
        sums = log_ratios.new_zeros(int(part.max()) + 1).index_add(0, part.flatten(), log_ratios.flatten())
        log_ratios = sums[part]
    ratios = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    outside = ratios > max_weight
    if kind == "truncated":
        weights, name = ratios.clamp(max=max_weight), "rollout_truncated_fraction"
    else:
        outside = outside | (ratios < min_weight)
        weights, name = ratios.masked_fill(outside, 0.0), "rollout_masked_fraction"
    return torch.where(mask, weights, 0.0), {
        "rollout_weight_mean": float(masked_average(weights, mask)),
        name: float(masked_average(outside.to(weights.dtype), mask)),
    }
