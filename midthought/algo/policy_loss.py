"""Contract of policy losses: their inputs, their registration, and what several of them share.

A policy loss returns one value per token; the caller averages. Values outside the mask are never read, even if they are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from midthought.algo.registry import Registry
from midthought.config import TrainingConfig

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before `exp`, so that a single token cannot make the loss infinite."""


@dataclass(frozen=True, kw_only=True)
class PolicyLossInputs:
    """Inputs of a policy loss: B rows of T tokens; a row is one segment of one episode."""

    old_logprobs: Tensor  # [B, T]
    """Log-probabilities of the policy before the update."""
    logprobs: Tensor  # [B, T]
    """Log-probabilities of the current policy, with gradient."""
    advantages: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    """True for policy tokens."""
    sampled_logprobs: Tensor | None = None  # [B, T]
    """Log-probabilities with which the engine sampled the tokens; None: `old_logprobs`."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None

    def log_ratios(self) -> Tensor:
        """Returns `log π - log π_old` at the N policy tokens, in row order, clamped to ± 20: [N]."""
        return (self.logprobs - self.old_logprobs)[self.mask].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    def over_rows(self, values: Tensor) -> Tensor:
        """[N] at the policy tokens, in row order -> [B, T], 0 elsewhere."""
        return values.new_zeros(self.mask.shape).masked_scatter(self.mask, values)


TokenLosses = tuple[Tensor, dict[str, Tensor]]
"""The loss of every token [B, T], and metrics of every token by name, each [B, T]."""
PolicyLoss = Callable[..., TokenLosses]
"""Takes `PolicyLossInputs`, and its own options as keyword arguments with defaults (`compute_policy_loss`)."""

POLICY_LOSSES: Registry[PolicyLoss] = Registry("policy loss")


def policy_loss(
    name: str, *, corrects_sampling: bool = False, is_supervised: bool = False
) -> Callable[[PolicyLoss], PolicyLoss]:
    """Registers the decorated function as `training.policy_loss=name`.

    `corrects_sampling`: its ratios are to the sampled log-probabilities, so
    `training.rollout_correction` must be `none`. `is_supervised`: it has no ratios at all; the same holds, and it can train on
    demonstrations.

        @policy_loss("reinforce")
        def reinforce(inputs: PolicyLossInputs) -> TokenLosses:
            return -inputs.advantages * inputs.logprobs, {}

    Raises ValueError for the name of a built-in loss.
    """

    def register(function: PolicyLoss) -> PolicyLoss:
        POLICY_LOSSES.add(name, function)
        if name not in TrainingConfig.policy_losses:
            TrainingConfig.policy_losses.append(name)
        _mark(TrainingConfig.sampling_corrected, name, corrects_sampling or is_supervised)
        _mark(TrainingConfig.supervised, name, is_supervised)
        return function

    return register


def _mark(names: set[str], name: str, is_member: bool) -> None:
    (names.add if is_member else names.discard)(name)


def row_means(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of each row's policy tokens: [B, T] -> [B, 1]. Raises ValueError for other shapes."""
    if mask.dim() != 2:
        raise ValueError(f"this loss has one ratio per row: give tensors of the shape [B, T], not {list(mask.shape)}")
    return torch.where(mask, values, 0.0).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def clipped_surrogate(
    ratios: Tensor, advantages: Tensor, inputs: PolicyLossInputs, dual_clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the clipped surrogate of ratios and advantages [N], and whether the gradient is clipped to 0 [N]."""
    plain = -ratios * advantages
    clipped = -ratios.clamp(1.0 - inputs.clip_low, 1.0 + inputs.clip_high) * advantages
    losses = torch.maximum(plain, clipped)
    if dual_clip is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -dual_clip * advantages), losses)
    return losses, clipped > plain


@torch.no_grad()
def ratio_metrics(
    inputs: PolicyLossInputs, log_ratios: Tensor, ratios: Tensor, clipped: Tensor | None = None
) -> dict[str, Tensor]:
    """Returns `approx_kl` (k3 of the log-ratios), `ratio_mean` and, if given, `clip_fraction` of every token, from [N]."""
    found = {"approx_kl": inputs.over_rows(log_ratios.exp() - 1.0 - log_ratios), "ratio_mean": inputs.over_rows(ratios)}
    return found if clipped is None else {"clip_fraction": inputs.over_rows(clipped.to(ratios.dtype)), **found}
