"""Policy losses: their inputs, their registration, what several of them share, and the losses of the library.

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


# -- the losses of the library ---------------------------------------------------------------------------------

SMALLEST = 1e-8
"""Added to the probability of all other tokens in `dppo_kl`, which may be 0 (or below, by rounding)."""


@policy_loss("ppo")
def ppo(inputs: PolicyLossInputs) -> TokenLosses:
    """`max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)`, `r = π / π_old`.

    Source: PPO, Schulman et al. 2017 (arXiv 1707.06347), equation 7, negated; different lower and upper range: DAPO (arXiv
    2503.14476), equation 10. With `dual_clip` c > 1 the loss of a token with A < 0 is at most `-c A` (Ye et al. 2020, arXiv
    1912.09729, equation 5). Metrics: `clip_fraction` (tokens whose gradient is clipped to 0), `approx_kl` (KL(old‖new) by k3:
    `r - 1 - log r`), `ratio_mean`.
    """
    log_ratios = inputs.log_ratios()
    ratios = log_ratios.exp()
    losses, clipped = clipped_surrogate(ratios, inputs.advantages[inputs.mask], inputs, inputs.dual_clip)
    return inputs.over_rows(losses), ratio_metrics(inputs, log_ratios, ratios, clipped)


@policy_loss("gspo")
def gspo(inputs: PolicyLossInputs) -> TokenLosses:
    """`max(-s A, -clip(s, 1 - clip_low, 1 + clip_high) A)`, `s = (π(row) / π_old(row))^(1 / policy tokens of the row)`.

    Source: GSPO, Zheng et al. 2025 (arXiv 2507.18071), equation 5, in the form that it calls GSPO-token,
    `s_t = sg[s] π_t / sg[π_t]`, sg = stop-gradient: the same loss if all tokens of a row have one advantage, and it also allows
    different ones. The paper averages by `seq-mean-token-mean`, with clip ranges of 3e-4 and 4e-4. Metrics: as for `ppo`;
    `ratio_mean` is the mean of s.
    """
    mask = inputs.mask
    means = row_means(inputs.logprobs - inputs.old_logprobs, mask)
    held = means.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).detach().expand(mask.shape)[mask]
    own = inputs.logprobs[mask]
    ratios = (held + (own - own.detach())).exp()
    losses, clipped = clipped_surrogate(ratios, inputs.advantages[mask], inputs)
    return inputs.over_rows(losses), ratio_metrics(inputs, inputs.log_ratios(), ratios, clipped)


@policy_loss("cispo")
def cispo(inputs: PolicyLossInputs) -> TokenLosses:
    """`-sg[clip(r, 1 - clip_low, 1 + clip_high)] A log π`: clips the weight of a token, never its gradient to 0.

    Source: CISPO, MiniMax-M1 2025 (arXiv 2506.13585), equations 4 and 5; the paper has no lower limit (`clip_low` of 1).
    Metrics: as for `ppo`; `clip_fraction` is the share of tokens with a clipped weight.
    """
    log_ratios = inputs.log_ratios()
    ratios = log_ratios.exp().detach()
    weights = ratios.clamp(1.0 - inputs.clip_low, 1.0 + inputs.clip_high)
    losses = -weights * inputs.advantages[inputs.mask] * inputs.logprobs[inputs.mask]
    return inputs.over_rows(losses), ratio_metrics(inputs, log_ratios, ratios, weights != ratios)


@policy_loss("sapo")
def sapo(inputs: PolicyLossInputs, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> TokenLosses:
    """`-f(r) A`, `f(r) = 4/τ · σ(τ (r - 1))`, with τ = `tau_pos` if A > 0, else `tau_neg`.

    At r = 1 its gradient is that of the surrogate without clipping; farther away it is smaller by `4 σ (1 - σ)`, metric
    `gate_mean`. Source: SAPO, Gao et al. 2025 (arXiv 2511.20347), equations 5 and 6; the paper averages by
    `seq-mean-token-mean`. Further metrics: `approx_kl` and `ratio_mean`, as for `ppo`.
    """
    log_ratios = inputs.log_ratios()
    ratios, advantages = log_ratios.exp(), inputs.advantages[inputs.mask]
    tau = torch.where(advantages > 0, ratios.new_tensor(tau_pos), ratios.new_tensor(tau_neg))
    gate = torch.sigmoid(tau * (ratios - 1.0))
    metrics = ratio_metrics(inputs, log_ratios, ratios)
    metrics["gate_mean"] = inputs.over_rows((4.0 * gate * (1.0 - gate)).detach())
    return inputs.over_rows(-4.0 / tau * gate * advantages), metrics


@policy_loss("gmpo")
def gmpo(inputs: PolicyLossInputs, *, clip_log_ratio: float = 0.4) -> TokenLosses:
    """`-A exp(mean_t c_t)` at every token of a row, with c the log-ratio, limited to `clip_log_ratio` if it has moved in the
    direction of the advantage: `min(l, ε)` if A > 0, `max(l, -ε)` if A ≤ 0. A is the mean of the row's advantages.

    Source: GMPO, Zhao et al. 2025 (arXiv 2507.20673), equation 4, with its range (e^-0.4, e^0.4). Averaged by
    `seq-mean-token-mean` it is the paper's mean over rows. Metrics: as for `ppo`; `clip_fraction` is the share of limited tokens.
    """
    mask = inputs.mask
    log_ratios = inputs.log_ratios()
    advantages = inputs.advantages[mask]
    limited = torch.where(advantages > 0, log_ratios.clamp(max=clip_log_ratio), log_ratios.clamp(min=-clip_log_ratio))
    means = row_means(inputs.over_rows(limited), mask)
    losses = -row_means(inputs.advantages, mask) * means.exp()
    metrics = ratio_metrics(inputs, log_ratios, log_ratios.exp(), limited != log_ratios)
    return losses.expand(mask.shape) * mask, metrics


@policy_loss("dppo_tv", corrects_sampling=True)
def dppo_tv(inputs: PolicyLossInputs, *, max_divergence: float = 0.15, max_ratio: float = 20.0) -> TokenLosses:
    """`-m sg[min(r, max_ratio)] A log π`, `r = π / μ`, with m = 0 for a token that has moved too far in the direction of its
    advantage: π - μ > `max_divergence` if A > 0, π - μ < -`max_divergence` if A ≤ 0; else m = 1.

    μ is the probability with which the token was sampled (not a recomputed one), and |π - μ| the total variation of the
    distribution over {this token, any other}. Source: DPPO-Binary-TV, Qi et al. 2026 (arXiv 2602.04879), section 4. Metrics:
    as for `ppo`, of π / μ; `clip_fraction` is the share of tokens with m = 0.
    """
    return _trust_region(inputs, max_ratio, lambda now, then: (now - then).abs() > max_divergence)


@policy_loss("dppo_kl", corrects_sampling=True)
def dppo_kl(inputs: PolicyLossInputs, *, max_divergence: float = 0.05, max_ratio: float = 20.0) -> TokenLosses:
    """As `dppo_tv`, with the divergence `μ log(μ / π) + (1 - μ) log((1 - μ) / (1 - π))` in nats.

    Source: DPPO-Binary-KL, Qi et al. 2026 (arXiv 2602.04879), section 4.
    """

    def is_far(now: Tensor, then: Tensor) -> Tensor:
        others = torch.log(((1.0 - then).clamp(min=0.0) + SMALLEST) / ((1.0 - now).clamp(min=0.0) + SMALLEST))
        divergence = torch.xlogy(then, then) - then * now.log() + (1.0 - then) * others
        return divergence > max_divergence

    return _trust_region(inputs, max_ratio, is_far)


def _trust_region(
    inputs: PolicyLossInputs, max_ratio: float, is_far: Callable[[Tensor, Tensor], Tensor]
) -> TokenLosses:
    """`is_far` takes the probabilities of the tokens, now and when they were sampled, [N] each."""
    base = inputs.old_logprobs if inputs.sampled_logprobs is None else inputs.sampled_logprobs
    sampled, current, advantages = (each[inputs.mask] for each in (base, inputs.logprobs, inputs.advantages))
    with torch.no_grad():
        log_ratios = (current - sampled).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        now, then = current.exp(), sampled.exp()
        moved_with_advantage = torch.where(advantages > 0, now > then, now < then)
        clipped = moved_with_advantage & is_far(now, then)
        weights = torch.where(clipped, 0.0, log_ratios.exp().clamp(max=max_ratio))
    losses = -weights * advantages * current
    return inputs.over_rows(losses), ratio_metrics(inputs, log_ratios, log_ratios.exp(), clipped)


@policy_loss("nll", is_supervised=True)
def nll(inputs: PolicyLossInputs) -> TokenLosses:
    """`-A log π`: cross-entropy if A is 1, and the gradient of REINFORCE for any A. It has no ratio and no bounds.

    Source: RFT, Yuan et al. 2023 (arXiv 2308.01825), section 3.2; RAFT, Dong et al. 2023 (arXiv 2304.06767), with the A of
    `keep_best`.
    """
    return inputs.over_rows(-inputs.advantages[inputs.mask] * inputs.logprobs[inputs.mask]), {}
