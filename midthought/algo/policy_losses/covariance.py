"""Clip-Cov and KL-Cov: restrain the few tokens whose log-probability and advantage covary most; these reduce the entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from midthought.algo.policy_loss import (
    PolicyLossInputs,
    SelectorInputs,
    TokenLosses,
    clipped_surrogate,
    policy_loss,
    ratio_metrics,
)


def covariances(inputs: SelectorInputs) -> Tensor:
    """Returns `(log π - mean log π) (A - mean A)` of every token, with means over the N tokens: [N]. Source: Cui et al. 2025
    (arXiv 2505.22617), equation 10; π is the policy before the update."""
    logprobs, advantages = inputs.old_logprobs, inputs.advantages
    return (logprobs - logprobs.mean()) * (advantages - advantages.mean())


def some_of_high_covariance(inputs: SelectorInputs, *, share: float, low: float, high: float) -> Tensor:
    """Chooses `share` of the N tokens (at least one), at random among those with a covariance from `low` to `high`: [N] bool."""
    covariance = covariances(inputs)
    order = torch.where((covariance > low) & (covariance < high), inputs.order.to(covariance), torch.inf)
    return _smallest(order, share) & order.isfinite()


def highest_covariance(inputs: SelectorInputs, *, share: float, kl_coef: float) -> Tensor:
    """Chooses `share` of the N tokens (at least one) with the highest covariance: [N] bool."""
    return _smallest(-covariances(inputs), share)


@policy_loss("clip_cov", selector=some_of_high_covariance)
def clip_cov(inputs: PolicyLossInputs, *, share: float = 2e-4, low: float = 1.0, high: float = 5.0) -> TokenLosses:
    """PPO's clipped surrogate without the gradient of the selected tokens. Source: Cui et al. 2025, equations 11 and 12.

    Metrics: as for `ppo`; `selected_fraction`.
    """
    ratios = inputs.log_ratios().exp()
    losses, clipped = clipped_surrogate(ratios, inputs.advantages[inputs.mask], inputs)
    selected = _selected(inputs)
    metrics = ratio_metrics(inputs, inputs.log_ratios(), ratios, clipped)
    return inputs.over_rows(losses.masked_fill(selected, 0.0)), metrics | _share(inputs, selected)


@policy_loss("kl_cov", selector=highest_covariance)
def kl_cov(inputs: PolicyLossInputs, *, share: float = 2e-4, kl_coef: float = 1.0) -> TokenLosses:
    """`-r A`, for the selected tokens plus `kl_coef |log r|`. Nothing is clipped. Source: Cui et al. 2025, equations 13 and 14.

    Metrics: `approx_kl`, `ratio_mean`, `selected_fraction`.
    """
    log_ratios, selected = inputs.log_ratios(), _selected(inputs)
    ratios = log_ratios.exp()
    losses = -ratios * inputs.advantages[inputs.mask] + torch.where(selected, kl_coef * log_ratios.abs(), 0.0)
    return inputs.over_rows(losses), ratio_metrics(inputs, log_ratios, ratios) | _share(inputs, selected)


def _selected(inputs: PolicyLossInputs) -> Tensor:
    if inputs.selected is None:
        raise ValueError(
            "this loss needs `selected`: the tokens that its selector chose among all of the optimizer step"
        )
    return inputs.selected[inputs.mask].bool()


def _share(inputs: PolicyLossInputs, selected: Tensor) -> dict[str, Tensor]:
    return {"selected_fraction": inputs.over_rows(selected.to(inputs.logprobs.dtype))}


def _smallest(values: Tensor, share: float) -> Tensor:
    """Returns True for `share` of the values (at least one), the smallest: [N] bool."""
    number = max(1, int(share * len(values)))
    return torch.zeros_like(values, dtype=torch.bool).scatter(0, values.argsort(stable=True)[:number], True)
