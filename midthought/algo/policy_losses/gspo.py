"""GSPO: one ratio per row."""

from __future__ import annotations

from midthought.algo.policy_loss import (
    MAX_LOG_RATIO,
    PolicyLossInputs,
    TokenLosses,
    clipped_surrogate,
    policy_loss,
    ratio_metrics,
    row_means,
)


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
