"""CISPO: clipped importance weights on the log-likelihood."""

from __future__ import annotations

from midthought.algo.policy_loss import PolicyLossInputs, TokenLosses, policy_loss, ratio_metrics


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
