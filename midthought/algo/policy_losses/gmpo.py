"""GMPO: the geometric mean of a row's clipped ratios."""

from __future__ import annotations

import torch

from midthought.algo.policy_loss import PolicyLossInputs, TokenLosses, policy_loss, ratio_metrics, row_means


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
