"""PPO's clipped surrogate, and DAPO's."""

from __future__ import annotations

from midthought.algo.policy_loss import PolicyLossInputs, TokenLosses, clipped_surrogate, policy_loss, ratio_metrics


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
