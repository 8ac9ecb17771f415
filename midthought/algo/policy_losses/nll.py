"""The negative log-likelihood, weighted by the advantage: supervised steps on sampled episodes."""

from __future__ import annotations

from midthought.algo.policy_loss import PolicyLossInputs, TokenLosses, policy_loss


@policy_loss("nll", is_supervised=True)
def nll(inputs: PolicyLossInputs) -> TokenLosses:
    """`-A log π`: cross-entropy if A is 1, and the gradient of REINFORCE for any A. It has no ratio and no bounds.

    Source: RFT, Yuan et al. 2023 (arXiv 2308.01825), section 3.2; RAFT, Dong et al. 2023 (arXiv 2304.06767), with the A of
    `keep_best`.
    """
    return inputs.over_rows(-inputs.advantages[inputs.mask] * inputs.logprobs[inputs.mask]), {}
