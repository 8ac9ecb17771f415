"""Losses of PPO and related algorithms as pure functions on tensors; `mask` marks policy tokens.

A policy loss returns one value per token; the caller averages. An average is a sum over policy tokens divided by
`denominator`: with the denominator of the whole optimizer step, losses, gradients and metrics of its micro-batches sum to
the values of the step, however it is split or padded. Values outside the mask are never read, even if they are NaN.
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


def masked_average(
    values: Tensor, mask: Tensor, denominator: float | Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Returns the sum of `values` (times `weights`) at the mask, divided by `denominator` (default: number of entries, ≥ 1).

    All shapes are equal; the mask may have any type.
    """
    mask = mask.bool()
    if denominator is None:
        denominator = mask.sum().clamp(min=1)
    chosen = values.masked_fill(~mask, 0.0)
    if weights is not None:
        chosen = chosen * weights.masked_fill(~mask, 0.0)
    return chosen.sum() / denominator


def require_one_shape(mask: Tensor, **tensors: Tensor) -> None:
    """Raises ValueError if a tensor has another shape than the mask, because it would be broadcast."""
    for name, tensor in tensors.items():
        if tensor.shape != mask.shape:
            raise ValueError(f"{name} have the shape {list(tensor.shape)}, the mask {list(mask.shape)}; give one shape")


# -- policy losses -----------------------------------------------------------------------------------------------


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
PolicyLoss = Callable[[PolicyLossInputs], TokenLosses]

POLICY_LOSSES: Registry[PolicyLoss] = Registry("policy loss")


def policy_loss(name: str) -> Callable[[PolicyLoss], PolicyLoss]:
    """Registers the decorated function as `training.policy_loss=name`.

        @policy_loss("reinforce")
        def reinforce(inputs: PolicyLossInputs) -> TokenLosses:
            return -inputs.advantages * inputs.logprobs, {}

    Raises ValueError for the name of a built-in loss.
    """

    def register(function: PolicyLoss) -> PolicyLoss:
        POLICY_LOSSES.add(name, function)
        TrainingConfig.policy_losses.add(name)
        return function

    return register


@policy_loss("ppo")
def clipped_surrogate(inputs: PolicyLossInputs) -> TokenLosses:
    """`max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)`, `r = π / π_old`.

    Source: PPO, Schulman et al. 2017 (arXiv 1707.06347), equation 7, negated; different lower and upper range: DAPO (arXiv
    2503.14476), equation 10. With `dual_clip` c > 1 the loss of a token with A < 0 is at most `-c A` (Ye et al. 2020, arXiv
    1912.09729, equation 5). Metrics: `clip_fraction` (tokens whose gradient is clipped to 0), `approx_kl` (KL(old‖new) by k3:
    `r - 1 - log r`), `ratio_mean`.
    """
    log_ratios = inputs.log_ratios()
    ratios = log_ratios.exp()
    losses, clipped = _clipped(ratios, inputs, inputs.dual_clip)
    return inputs.over_rows(losses), _metrics(inputs, log_ratios, ratios, clipped)


@policy_loss("gspo")
def sequence_clipped_surrogate(inputs: PolicyLossInputs) -> TokenLosses:
    """`max(-s A, -clip(s, 1 - clip_low, 1 + clip_high) A)`, `s = (π(row) / π_old(row))^(1 / policy tokens of the row)`.

    Source: GSPO, Zheng et al. 2025 (arXiv 2507.18071), equation 5, in the form that it calls GSPO-token,
    `s_t = sg[s] π_t / sg[π_t]`, sg = stop-gradient: the same loss if all tokens of a row have one advantage, and it also allows
    different ones. The paper averages by `seq-mean-token-mean`, with clip ranges of 3e-4 and 4e-4. Metrics: as for `ppo`;
    `ratio_mean` is the mean of s.
    """
    mask = inputs.mask
    if mask.dim() != 2:
        raise ValueError(f"'gspo' takes its ratio over rows: give tensors of the shape [B, T], not {list(mask.shape)}")
    differences = torch.where(mask, inputs.logprobs - inputs.old_logprobs, 0.0)
    means = differences.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    held = means.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).detach().expand_as(differences)[mask]
    own = inputs.logprobs[mask]
    ratios = (held + (own - own.detach())).exp()
    losses, clipped = _clipped(ratios, inputs)
    return inputs.over_rows(losses), _metrics(inputs, inputs.log_ratios(), ratios, clipped)


@policy_loss("cispo")
def clipped_weight(inputs: PolicyLossInputs) -> TokenLosses:
    """`-sg[clip(r, 1 - clip_low, 1 + clip_high)] A log π`: clips the weight of a token, never its gradient to 0.

    Source: CISPO, MiniMax-M1 2025 (arXiv 2506.13585), equations 4 and 5; the paper has no lower limit (`clip_low` of 1).
    Metrics: as for `ppo`; `clip_fraction` is the share of tokens with a clipped weight.
    """
    log_ratios = inputs.log_ratios()
    ratios = log_ratios.exp().detach()
    weights = ratios.clamp(1.0 - inputs.clip_low, 1.0 + inputs.clip_high)
    losses = -weights * inputs.advantages[inputs.mask] * inputs.logprobs[inputs.mask]
    return inputs.over_rows(losses), _metrics(inputs, log_ratios, ratios, weights != ratios)


def _clipped(ratios: Tensor, inputs: PolicyLossInputs, dual_clip: float | None = None) -> tuple[Tensor, Tensor]:
    """Returns the clipped surrogate of ratios [N], and whether the gradient is clipped to 0 [N]."""
    advantages = inputs.advantages[inputs.mask]
    plain = -ratios * advantages
    clipped = -ratios.clamp(1.0 - inputs.clip_low, 1.0 + inputs.clip_high) * advantages
    losses = torch.maximum(plain, clipped)
    if dual_clip is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -dual_clip * advantages), losses)
    return losses, clipped > plain


@torch.no_grad()
def _metrics(inputs: PolicyLossInputs, log_ratios: Tensor, ratios: Tensor, clipped: Tensor) -> dict[str, Tensor]:
    return {
        "clip_fraction": inputs.over_rows(clipped.to(ratios.dtype)),
        "approx_kl": inputs.over_rows(log_ratios.exp() - 1.0 - log_ratios),
        "ratio_mean": inputs.over_rows(ratios),
    }


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
    kind: str = "ppo",
    weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the policy loss of this name. Returns (scalar loss, detached metrics), both averaged over policy tokens.

    All shapes are equal; `gspo` needs [B, T]. `weights` multiply the token losses, not the metrics. Raises ValueError for an
    unknown name or different shapes.
    """
    mask = mask.bool()
    require_one_shape(mask, old_logprobs=old_logprobs, logprobs=logprobs, advantages=advantages)
    inputs = PolicyLossInputs(
        old_logprobs=old_logprobs,
        logprobs=logprobs,
        advantages=advantages,
        mask=mask,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    losses, metrics = POLICY_LOSSES.find(kind)(inputs)
    loss = masked_average(losses, mask, denominator, weights)
    return loss, {name: masked_average(values.detach(), mask, denominator) for name, values in metrics.items()}


# -- value and entropy -------------------------------------------------------------------------------------------


def compute_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    cliprange_value: float | None = 0.2,
    denominator: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped value loss: `½ mean(max((V - R)², (V_clip - R)²))` with `V_clip = V_old + clip(V - V_old, ±ε)`.

    Source: PPO2 of OpenAI Baselines, as in verl's `compute_value_loss`. `cliprange_value=None` means no clipping. All shapes
    are equal. Metric: `value_clip_fraction` (tokens whose clipped error is larger). Raises ValueError if shapes differ.
    """
    mask = mask.bool()
    require_one_shape(mask, values=values, old_values=old_values, returns=returns)
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
    """Returns the entropy in nats, `-Σ p log p`, of distributions given as log-probabilities: [..., V] -> [...].

    A token with log-probability -inf contributes 0.
    """
    return -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(dim=-1)
