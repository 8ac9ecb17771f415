"""SAPO: a smooth gate in place of clipping."""

from __future__ import annotations

import torch

from midthought.algo.policy_loss import PolicyLossInputs, TokenLosses, policy_loss, ratio_metrics


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
