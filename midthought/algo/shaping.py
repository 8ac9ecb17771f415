"""Terms that are added to rewards and advantages, and factors of token losses: the KL divergence from a reference, DAPO's
penalty of long episodes, the advantages of a teacher, the rollout correction. Pure functions.

`x = log π - log ref` at tokens that π sampled.
"""

from __future__ import annotations

import enum
import math
from typing import Any, Literal

import torch
from torch import Tensor

from midthought.algo.losses import masked_average
from midthought.algo.policy_losses import MAX_LOG_RATIO
from midthought.algo.tensors import as_mask, require_one_shape, require_tensors
from midthought.errors import near_names


class KLKind(enum.StrEnum):
    """Estimators of KL(π‖ref) from samples of π: Schulman 2020, joschu.net/blog/kl-approx.html. verl's names are accepted."""

    K1 = "k1"
    """`x`: unbiased, may be negative (verl: `kl`). Its gradient is zero on average: use it in rewards, not in losses."""
    ABS = "abs"
    """`|x|`."""
    K2 = "k2"
    """`½ x²`: biased, but its gradient is that of the KL divergence (verl: `mse`)."""
    K3 = "k3"
    """`exp(-x) - 1 + x`: unbiased, never negative, low variance (verl: `low_var_kl`)."""

    @classmethod
    def _missing_(cls, value: object) -> KLKind:
        names = {"kl": cls.K1, "mse": cls.K2, "low_var_kl": cls.K3}
        if value not in names:
            raise ValueError(
                f"unknown KL estimator {value!r}. {near_names(str(value), [*(kind.value for kind in cls), *names])}"
            )
        return names[str(value)]


def kl_divergence(log_probs: Tensor, ref_log_probs: Tensor, kl_penalty: KLKind | str = KLKind.K1) -> Tensor:
    """Returns the estimate of KL(π‖ref) at every token (`KLKind`); shapes are equal. For k3, x is clamped to ±20 before `exp`.

    Raises ValueError for an unknown kind or different shapes.
    """
    kind = KLKind(kl_penalty)
    require_tensors(log_probs=log_probs, ref_log_probs=ref_log_probs)
    if log_probs.shape != ref_log_probs.shape:
        raise ValueError(
            f"log_probs have the shape {list(log_probs.shape)}, ref_log_probs {list(ref_log_probs.shape)}; give one shape"
        )
    x = log_probs - ref_log_probs
    if kind is KLKind.K1:
        return x
    if kind is KLKind.ABS:
        return x.abs()
    if kind is KLKind.K2:
        return 0.5 * x**2
    x = x.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.exp(-x) - 1.0 + x


def apply_kl_penalty(
    token_level_rewards: Tensor,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    response_mask: Tensor,
    kl_coef: float,
    kl_penalty: KLKind | str = KLKind.K1,
) -> tuple[Tensor, Tensor]:
    """Returns (rewards `r_t - β KL_t` at policy tokens [B, T], mean KL over policy tokens as a scalar).

    Source: Ziegler et al. 2019 (arXiv 1909.08593), equation 2, per token. Rewards outside the mask are not changed. Raises
    ValueError if shapes differ.
    """
    mask = as_mask(response_mask, "response_mask")
    require_one_shape(mask, token_level_rewards=token_level_rewards, log_probs=log_probs)
    divergence = torch.where(mask, kl_divergence(log_probs, ref_log_probs, kl_penalty), 0.0)
    return token_level_rewards - kl_coef * divergence, masked_average(divergence, mask)


class KLController:
    """Coefficient β of the KL penalty: fixed, or adapted to `target_kl` (nats per token).

    Adaptive: `β ← β (1 + clip(KL / target - 1, ±0.2) · n / horizon)` after n more episodes. Source: Ziegler et al. 2019
    (arXiv 1909.08593), section 2.2. `adaptive=False` ignores `target_kl`. Raises ValueError for arguments out of range.
    """

    def __init__(
        self,
        init_kl_coef: float,
        target_kl: float | None = None,
        horizon: int = 10_000,
        *,
        adaptive: bool | None = None,
    ) -> None:
        if not 0 <= init_kl_coef < math.inf:
            raise ValueError(f"init_kl_coef must be a finite number of 0 or more, got {init_kl_coef}")
        if target_kl is not None and target_kl <= 0:
            raise ValueError(f"target_kl must be above 0 or None (a fixed coefficient), got {target_kl}")
        if horizon <= 0:
            raise ValueError(f"horizon must be above 0, got {horizon}")
        if adaptive and target_kl is None:
            raise ValueError("adaptive=True needs a target_kl (nats per token)")
        self.coef = init_kl_coef
        self.target_kl = None if adaptive is False else target_kl
        self.horizon = horizon

    @property
    def value(self) -> float:
        """`coef` under its name in the setup package."""
        return self.coef

    def update(self, current_kl: float, n_steps: int) -> float:
        """Updates the coefficient from the mean KL of the last `n_steps` episodes and returns it.

        Raises ValueError if the mean KL is not finite, because the coefficient would be NaN from then on.
        """
        if not math.isfinite(current_kl):
            raise ValueError(f"the mean KL is {current_kl}; find the log-probability that is not finite")
        if self.target_kl is not None:
            error = min(max(current_kl / self.target_kl - 1.0, -0.2), 0.2)
            self.coef *= 1.0 + error * n_steps / self.horizon
        return self.coef

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.coef = state["coef"]


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
