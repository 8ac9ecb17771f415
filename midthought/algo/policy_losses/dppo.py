"""DPPO: a trust region of the divergence between the sampling policy and the current one, in place of a range of ratios."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from midthought.algo.policy_loss import MAX_LOG_RATIO, PolicyLossInputs, TokenLosses, policy_loss, ratio_metrics

SMALLEST = 1e-8
"""Added to the probability of all other tokens, which may be 0 (or below, by rounding)."""


@policy_loss("dppo_tv", corrects_sampling=True)
def dppo_tv(inputs: PolicyLossInputs, *, max_divergence: float = 0.15, max_ratio: float = 20.0) -> TokenLosses:
    """`-m sg[min(r, max_ratio)] A log π`, `r = π / μ`, with m = 0 for a token that has moved too far in the direction of its
    advantage: π - μ > `max_divergence` if A > 0, π - μ < -`max_divergence` if A ≤ 0; else m = 1.

    μ is the probability with which the token was sampled (not a recomputed one), and |π - μ| the total variation of the
    distribution over {this token, any other}. Source: DPPO-Binary-TV, Qi et al. 2026 (arXiv 2602.04879), section 4. Metrics:
    as for `ppo`, of π / μ; `clip_fraction` is the share of tokens with m = 0.
    """
    return _masked(inputs, max_ratio, lambda now, then: (now - then).abs() > max_divergence)


@policy_loss("dppo_kl", corrects_sampling=True)
def dppo_kl(inputs: PolicyLossInputs, *, max_divergence: float = 0.05, max_ratio: float = 20.0) -> TokenLosses:
    """As `dppo_tv`, with the divergence `μ log(μ / π) + (1 - μ) log((1 - μ) / (1 - π))` in nats.

    Source: DPPO-Binary-KL, Qi et al. 2026 (arXiv 2602.04879), section 4.
    """

    def is_far(now: Tensor, then: Tensor) -> Tensor:
        others = torch.log(((1.0 - then).clamp(min=0.0) + SMALLEST) / ((1.0 - now).clamp(min=0.0) + SMALLEST))
        divergence = torch.xlogy(then, then) - then * now.log() + (1.0 - then) * others
        return divergence > max_divergence

    return _masked(inputs, max_ratio, is_far)


def _masked(inputs: PolicyLossInputs, max_ratio: float, is_far: Callable[[Tensor, Tensor], Tensor]) -> TokenLosses:
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
