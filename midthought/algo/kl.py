"""KL divergence from a reference policy per token: estimators of KL(π‖ref), penalty in the rewards, adaptive coefficient.

`x = log π - log ref` at tokens that π sampled.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import torch
from torch import Tensor

from midthought.algo.losses import masked_average
from midthought.algo.policy_loss import MAX_LOG_RATIO
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
