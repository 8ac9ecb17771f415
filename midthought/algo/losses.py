"""The losses of PPO and its relatives as pure functions on tensors; `mask` says which entries are policy tokens.

A policy loss gives one figure per token; averaging is the caller's. Every average is a sum over masked entries divided
by `denominator`: given that of the whole optimizer step, the micro-batches' losses, gradients and metrics add up to
those of the step, however it was cut or padded. What stands outside the mask is never read, not even where it is NaN.
Knows no model and no optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from midthought.algo.registry import Registry
from midthought.config import TrainingConfig

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before `exp`, so that one broken token cannot make the loss infinite."""


def masked_average(
    values: Tensor, mask: Tensor, denominator: float | Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Sum of `values` (times `weights`) where `mask`, divided by `denominator` (default: the masked entries, at least 1).

    Shapes: all alike; the mask may be of any type.
    """
    mask = mask.bool()
    if denominator is None:
        denominator = mask.sum().clamp(min=1)
    chosen = values.masked_fill(~mask, 0.0)
    if weights is not None:
        chosen = chosen * weights.masked_fill(~mask, 0.0)
    return chosen.sum() / denominator


def require_one_shape(mask: Tensor, **tensors: Tensor) -> None:
    """Raise ValueError, naming the tensor, where one has another shape than the mask: nothing is ever broadcast."""
    for name, tensor in tensors.items():
        if tensor.shape != mask.shape:
            raise ValueError(f"{name} have the shape {list(tensor.shape)}, the mask {list(mask.shape)}; give one shape")


# -- policy losses -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PolicyLossInputs:
    """What a policy loss gets: B rows of T tokens; a row is one segment of one episode."""

    old_logprobs: Tensor  # [B, T]
    """Of the policy before the update."""
    logprobs: Tensor  # [B, T]
    """Of the policy as it is: what the gradient goes through."""
    advantages: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    """True for policy tokens."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None

    def log_ratios(self) -> Tensor:
        """`log π - log π_old` at the N policy tokens, in row order, clamped to ± 20: [N]."""
        return (self.logprobs - self.old_logprobs)[self.mask].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    def over_rows(self, figures: Tensor) -> Tensor:
        """[N] at the policy tokens, in row order -> [B, T], 0 elsewhere."""
        return figures.new_zeros(self.mask.shape).masked_scatter(self.mask, figures)


TokenLosses = tuple[Tensor, dict[str, Tensor]]
"""The loss of every token [B, T], and figures of every token by name, each [B, T], for the metrics."""
PolicyLoss = Callable[[PolicyLossInputs], TokenLosses]

POLICY_LOSSES: Registry[PolicyLoss] = Registry("policy loss")


def policy_loss(name: str) -> Callable[[PolicyLoss], PolicyLoss]:
    """Register the decorated function as `training.policy_loss=name`.

        @policy_loss("reinforce")
        def reinforce(inputs: PolicyLossInputs) -> TokenLosses:
            return -inputs.advantages * inputs.logprobs, {}

    Raises ValueError where the name ships with this library.
    """

    def register(function: PolicyLoss) -> PolicyLoss:
        POLICY_LOSSES.add(name, function)
        TrainingConfig.policy_losses.add(name)
        return function

    return register


@policy_loss("ppo")
def clipped_surrogate(inputs: PolicyLossInputs) -> TokenLosses:
    """`max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)`, `r = π / π_old`.

    Source: Schulman et al. 2017 (arXiv 1707.06347), equation 7, negated; unequal bounds: DAPO (arXiv 2503.14476), eq.
    10. With `dual_clip` c > 1 the loss of a token with a negative advantage is at most `-c A` (Ye et al. 2020, arXiv
    1912.09729, eq. 5). Figures: `clip_fraction` (tokens whose gradient the bounds cut off), `approx_kl` (KL(old‖new) by
    k3: `r - 1 - log r`), `ratio_mean`.
    """
    log_ratios = inputs.log_ratios()
    ratios = log_ratios.exp()
    losses, clipped = _clipped(ratios, inputs, inputs.dual_clip)
    return inputs.over_rows(losses), _figures(inputs, log_ratios, ratios, clipped)


@policy_loss("gspo")
def sequence_clipped_surrogate(inputs: PolicyLossInputs) -> TokenLosses:
    """`max(-s A, -clip(s, 1 - clip_low, 1 + clip_high) A)`, `s = (π(row) / π_old(row))^(1 / policy tokens of the row)`.

    Source: GSPO, Zheng et al. 2025 (arXiv 2507.18071), equation 5, in the form that it calls GSPO-token,
    `s_t = sg[s] π_t / sg[π_t]`: the same where all tokens of a row have one advantage, and a token keeps its own credit
    where they do not. The paper averages by `seq-mean-token-mean`, with bounds of 3e-4 and 4e-4. Figures: as of `ppo`,
    `ratio_mean` being that of s.
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
    return inputs.over_rows(losses), _figures(inputs, inputs.log_ratios(), ratios, clipped)


@policy_loss("cispo")
def clipped_weight(inputs: PolicyLossInputs) -> TokenLosses:
    """`-sg[clip(r, 1 - clip_low, 1 + clip_high)] A log π`: no token's gradient is cut off, only its weight is bounded.

    Source: CISPO, MiniMax-M1 2025 (arXiv 2506.13585), equations 4 and 5; the paper leaves the lower bound open
    (`clip_low` of 1). Figures: as of `ppo`, `clip_fraction` being the tokens whose weight was bounded.
    """
    log_ratios = inputs.log_ratios()
    ratios = log_ratios.exp().detach()
    weights = ratios.clamp(1.0 - inputs.clip_low, 1.0 + inputs.clip_high)
    losses = -weights * inputs.advantages[inputs.mask] * inputs.logprobs[inputs.mask]
    return inputs.over_rows(losses), _figures(inputs, log_ratios, ratios, weights != ratios)


def _clipped(ratios: Tensor, inputs: PolicyLossInputs, dual_clip: float | None = None) -> tuple[Tensor, Tensor]:
    """The clipped surrogate of ratios [N], and where the bounds cut the gradient off [N]."""
    advantages = inputs.advantages[inputs.mask]
    plain = -ratios * advantages
    clipped = -ratios.clamp(1.0 - inputs.clip_low, 1.0 + inputs.clip_high) * advantages
    losses = torch.maximum(plain, clipped)
    if dual_clip is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -dual_clip * advantages), losses)
    return losses, clipped > plain


@torch.no_grad()
def _figures(inputs: PolicyLossInputs, log_ratios: Tensor, ratios: Tensor, clipped: Tensor) -> dict[str, Tensor]:
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
    """A policy loss by its name, averaged over policy tokens: (scalar loss, detached metrics averaged like it).

    Shapes: all alike; `gspo` needs [B, T]. `weights` multiply the tokens' losses, not the metrics. Raises ValueError for
    an unknown name or where shapes differ.
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
    losses, figures = POLICY_LOSSES.find(kind)(inputs)
    loss = masked_average(losses, mask, denominator, weights)
    return loss, {name: masked_average(figure.detach(), mask, denominator) for name, figure in figures.items()}


# -- value and entropy -------------------------------------------------------------------------------------------


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
    larger). Raises ValueError where shapes differ.
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
    """Entropy in nats, `-Σ p log p`, of distributions given as log-probabilities: [..., V] -> [...].

    An impossible token (log-probability -inf) adds nothing.
    """
    return -(logprobs.exp() * logprobs.clamp(min=torch.finfo(logprobs.dtype).min)).sum(dim=-1)
