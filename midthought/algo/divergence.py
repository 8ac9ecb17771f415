"""Divergences between two distributions over tokens: forward and reverse KL, and the generalized Jensen-Shannon divergence.

Does not depend on the source of the distributions, or on how tokens are averaged.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from midthought.algo.policy_loss import probability_ratios

NEVER = -1e4
"""Lower bound of log-probabilities. Its `p log p` is 0; with -inf it would be NaN."""
MAX_RATIO = 2.0
"""Largest importance weight of a token's divergence: `is_clip` of SDPO's authors."""


def generalized_jsd(logprobs: Tensor, others: Tensor, alpha: float) -> Tensor:
    """Returns the divergence of p (`logprobs`, the policy) from q (`others`, a teacher or reference): [..., V] -> [...], nats.

    With the mixture `m = (1 - α) p + α q`:

        α = 0        KL(q ‖ p)                            forward KL
        0 < α < 1    (1 - α) KL(p ‖ m) + α KL(q ‖ m)      α = 0.5: Jensen-Shannon, at most log 2
        α = 1        KL(p ‖ q)                            reverse KL

    Its gradient at the policy's logits is `p_j (u_j - Σ p u)` with `u = (1 - α) log(p / m)`, and `log(p / q)` for α = 1.
    Sources: GKD, Agarwal et al. 2023 (arXiv 2306.13649), equation 1, JSD(β) with β = α and the teacher as P; SDPO, Hübotter et
    al. 2026 (arXiv 2601.20802), `alpha` in `compute_self_distillation_loss` of the authors' code (github.com/lasgroup/SDPO).
    Both define the ends as the two KL divergences; the middle tends to 0 there. Raises ValueError unless α is in [0, 1].
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha}: give 0 (forward KL), 1 (reverse KL) or a number between (Jensen-Shannon)")
    logprobs, others = logprobs.clamp(min=NEVER), others.clamp(min=NEVER)
    if alpha == 0:
        return (others.exp() * (others - logprobs)).sum(-1)
    if alpha == 1:
        return (logprobs.exp() * (logprobs - others)).sum(-1)
    mixture = torch.logaddexp(logprobs + math.log1p(-alpha), others + math.log(alpha))
    of_policy = (logprobs.exp() * (logprobs - mixture)).sum(-1)
    return (1 - alpha) * of_policy + alpha * (others.exp() * (others - mixture)).sum(-1)


def with_rest(logprobs: Tensor) -> Tensor:
    """Appends the log-probability of all other tokens, `log(1 - Σ p)`: [..., k] -> [..., k + 1].

    Source: `add_tail` of SDPO's authors (github.com/lasgroup/SDPO), which also keeps at least 1e-7 for the rest.
    """
    total = logprobs.logsumexp(-1, keepdim=True).clamp(max=-1e-7)
    return torch.cat([logprobs, (-total.expm1()).log()], dim=-1)


def importance_weights(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Returns `min(π / π_old, 2)` of the policy tokens, without a gradient: the weight of a token's divergence if the policy has
    changed since it sampled the token. Shapes are equal. Source: as `with_rest`."""
    return probability_ratios(logprobs, old_logprobs).detach().clamp(max=MAX_RATIO)
