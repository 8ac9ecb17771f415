"""DPO: the best and the worst episode of a task as a pair."""

from __future__ import annotations

import torch
from torch import Tensor

from midthought.algo.policy_loss import PairInputs, PolicyLossInputs, TokenLosses, policy_loss


def dpo_coefficients(inputs: PairInputs, *, beta: float = 0.1) -> tuple[Tensor, dict[str, float]]:
    """Returns the coefficient of every token's log π in the gradient of DPO, [N], and metrics.

    With `m = β (Σ log π/π_ref over the better episode - Σ log π/π_ref over the worse one)`, the loss of a pair is `-log σ(m)`,
    and its gradient `-β σ(-m) (Σ ∇ log π of the better - Σ ∇ log π of the worse)`. The coefficient is `2 β σ(-m)` or its
    negative, because the loss is averaged over both episodes of each pair. It is computed once per optimizer step from
    the current weights, so the gradient is exact although a micro-batch may hold only one of the two. Source: Rafailov et al.
    2023 (arXiv 2305.18290), equation 7 and section 4. Metrics: `dpo_loss`, `dpo_margin` (the mean m), `dpo_accuracy` (the share
    of pairs with m > 0).
    """
    pairs, member = torch.unique(inputs.groups, return_inverse=True)
    signed = inputs.advantages * (inputs.logprobs - inputs.reference_logprobs)
    margins = beta * signed.new_zeros(len(pairs)).index_add(0, member, signed)
    coefficients = 2 * beta * torch.sigmoid(-margins)[member] * inputs.advantages
    metrics = {
        "dpo_loss": float(-torch.nn.functional.logsigmoid(margins).mean()),
        "dpo_margin": float(margins.mean()),
        "dpo_accuracy": float((margins > 0).float().mean()),
    }
    return coefficients, metrics


@policy_loss("dpo", is_supervised=True, pair_coefficients=dpo_coefficients)
def dpo(inputs: PolicyLossInputs, *, beta: float = 0.1) -> TokenLosses:
    """`-c log π` with the coefficient c of `dpo_coefficients`, which replaces the advantage. `loss_agg` must be
    `seq-mean-token-sum`. Its gradient is DPO's, its value is not: see `dpo_loss` in the metrics.
    """
    return inputs.over_rows(-inputs.advantages[inputs.mask] * inputs.logprobs[inputs.mask]), {}
