"""Terms that are added to rewards and advantages, and factors of token losses: DAPO's penalty of long episodes, the advantages of
a teacher, the rollout correction. Pure functions."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from midthought.algo.losses import masked_average
from midthought.algo.policy_loss import MAX_LOG_RATIO
from midthought.algo.tensors import as_mask, require_one_shape


def overlong_penalty(num_tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """DAPO's soft overlong punishment: `clip((max_tokens - buffer_tokens - n) / buffer_tokens, -1, 0)` for n tokens.

    0 up to `max_tokens - buffer_tokens`, then linear to -1 at `max_tokens`. Source: Yu et al. 2025 (arXiv 2503.14476), equation
    13. Raises ValueError if the buffer is not between 1 and `max_tokens`.
    """
    if not 1 <= buffer_tokens <= max_tokens:
        raise ValueError(f"the buffer must be between 1 and max_tokens={max_tokens} tokens, got {buffer_tokens}")
    return min(0.0, max(-1.0, (max_tokens - buffer_tokens - num_tokens) / buffer_tokens))


def teacher_advantages(teacher_logprobs: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
    """Returns `log π_teacher - log π` at policy tokens, 0 elsewhere; any shape.

    Its negative is an unbiased estimate of the reverse KL divergence of a token, and `E[A ∇ log π]` over tokens that π sampled is
    the gradient of `-KL(π(·|s) ‖ π_teacher(·|s))` in each visited state s. Effects of a token on later states are left out (a
    discount of 0). Sources: GKD, Agarwal et al. 2023 (arXiv 2306.13649), with on-policy data and the reverse KL; MiniLLM, Gu et
    al. 2023 (arXiv 2306.08543), the single-step part of its gradient; "On-Policy Distillation", Thinking Machines Lab 2025.
    """
    ratios = torch.where(mask, teacher_logprobs - logprobs, 0.0)
    return ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def rollout_weights(
    recomputed_logprobs: Tensor,
    sampled_logprobs: Tensor,
    mask: Tensor,
    kind: Literal["truncated", "masked", "sequence_truncated", "sequence_masked"],
    *,
    episodes: Tensor,
    max_weight: float = 2.0,
    min_weight: float = 0.0,
) -> tuple[Tensor, dict[str, float]]:
    """Returns (weights, metrics): factors of the losses of policy tokens whose probabilities differ between inference engine and
    learner; 0 elsewhere, without gradient. `ρ = π_recomputed / π_sampled` is 1 if both agree.

    All tensors have one shape; `episodes` is the episode of every token. Kinds:

    - `truncated`: `min(ρ, max)`. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    - `masked`: `ρ` if `min ≤ ρ ≤ max`, else 0. IcePop (Ring-1T, arXiv 2510.18855); without `min`: Liu et al. 2025, "When
      Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch".

    With `sequence_`, ρ is one ratio per episode, the product over its policy tokens. Log-ratios are clamped to ± 20. Weights
    multiply the token losses; the denominator of the loss also counts tokens of weight 0. Metrics, over policy tokens:
    `rollout_weight_mean`, and `rollout_truncated_fraction` or `rollout_masked_fraction`. Raises ValueError for different shapes.
    """
    mask = as_mask(mask)
    logprobs = {"recomputed_logprobs": recomputed_logprobs, "sampled_logprobs": sampled_logprobs}
    require_one_shape(mask, episodes=episodes, **logprobs)
    log_ratios = torch.where(mask, recomputed_logprobs - sampled_logprobs, 0.0).detach()
    if kind.startswith("sequence_"):
        _, part = torch.unique(episodes, return_inverse=True)
        sums = log_ratios.new_zeros(int(part.max()) + 1).index_add(0, part.flatten(), log_ratios.flatten())
        log_ratios = sums[part]
    ratios = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    outside = ratios > max_weight
    if kind.endswith("truncated"):
        weights, name = ratios.clamp(max=max_weight), "rollout_truncated_fraction"
    else:
        outside = outside | (ratios < min_weight)
        weights, name = ratios.masked_fill(outside, 0.0), "rollout_masked_fraction"
    return torch.where(mask, weights, 0.0), {
        "rollout_weight_mean": float(masked_average(weights, mask)),
        name: float(masked_average(outside.to(weights.dtype), mask)),
    }
