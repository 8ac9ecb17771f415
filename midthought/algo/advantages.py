"""How much better each policy token was than expected: GAE with a critic, GRPO with a group's mean as the baseline.

Pure functions on tensors. A mask [B, T] says which tokens the policy wrote; all others (prompt, tool results, padding)
are as if they were not there. Values follow the learner's alignment: `values[b, t]` judges the state *before* token t.
"""

from __future__ import annotations

import enum

import torch
from torch import Tensor

GRPO_EPSILON = 1e-6


class AdvantageEstimator(enum.StrEnum):
    """Which baseline the advantages are taken against."""

    GAE = "gae"
    GRPO = "grpo"


def compute_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    *,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation over policy tokens only -> (advantages, returns), [B, T], 0 outside the mask.

    `δ_t = r_t + γ V_next - V_t`, `A_t = δ_t + γ λ A_next`, `R_t = A_t + V_t`, where *next* is the next token of the
    mask in the row (after the last one: 0), so a tool's tokens cost neither discount nor value. Source: Schulman et
    al. 2015 (arXiv 1506.02438), equations 11 and 16. Rewards, too, are read at policy tokens only. `whiten` (as verl
    does) then gives the advantages mean 0 and deviation 1 over all policy tokens of the batch; the returns stay as
    they are.
    """
    mask = response_mask.bool()
    rewards = torch.where(mask, token_level_rewards, 0.0)
    values = torch.where(mask, values, 0.0)
    next_value = torch.zeros_like(values[:, 0])
    next_advantage = torch.zeros_like(next_value)
    columns = []
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(mask[:, t], delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        columns.append(next_advantage)
    advantages = torch.where(mask, torch.stack(columns[::-1], dim=1), 0.0)
    returns = advantages + values
    return (whiten_advantages(advantages, mask) if whiten else advantages), returns


def whiten_advantages(advantages: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """`(A - mean) / sqrt(var + ε)` over the masked entries, 0 elsewhere; `var` is the unbiased one.

    With fewer than two policy tokens there is no deviation: the advantages stay as they are.
    """
    count = mask.sum()
    if count < 2:
        return advantages.masked_fill(~mask, 0.0)
    mean = advantages.masked_fill(~mask, 0.0).sum() / count
    centred = (advantages - mean).masked_fill(~mask, 0.0)
    return centred * torch.rsqrt((centred**2).sum() / (count - 1) + epsilon)


def compute_grpo_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, groups: Tensor, *, norm_by_std: bool = True
) -> tuple[Tensor, Tensor]:
    """Every policy token of a row gets the row's standardised score -> (advantages, returns), both [B, T] and equal.

    `A = (s - mean of the group) / (std of the group + 1e-6)`, where s is the sum of the row's rewards at policy
    tokens and std the unbiased one. Source: DeepSeekMath (arXiv 2402.03300), section 4.1.2; without the division
    (`norm_by_std=False`): Dr. GRPO (arXiv 2503.20783). `groups` [B] holds the group's id of every row. A group of one
    has no baseline: mean 0 and std 1 are taken, as verl does, so its advantage is its score. A group without spread
    gives zeros.
    """
    mask = response_mask.bool()
    scores = torch.where(mask, token_level_rewards, 0.0).sum(dim=1)
    _, member = torch.unique(groups, return_inverse=True)
    num_groups = int(member.max()) + 1 if len(member) else 0
    counts = scores.new_zeros(num_groups).index_add(0, member, torch.ones_like(scores))
    means = scores.new_zeros(num_groups).index_add(0, member, scores) / counts
    alone = counts == 1
    centred = scores - torch.where(alone, 0.0, means)[member]
    variances = scores.new_zeros(num_groups).index_add(0, member, centred**2) / (counts - 1).clamp(min=1)
    deviations = torch.where(alone, 1.0, variances.sqrt())
    if norm_by_std:
        centred = centred / (deviations[member] + GRPO_EPSILON)
    advantages = torch.where(mask, centred[:, None], 0.0)
    return advantages, advantages


def compute_advantage(
    estimator: AdvantageEstimator | str,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    *,
    values: Tensor | None = None,
    groups: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten: bool = True,
    norm_by_std: bool = True,
) -> tuple[Tensor, Tensor]:
    """(advantages, returns) by the estimator's name; GAE needs `values` [B, T], GRPO needs `groups` [B].

    `gamma`, `lam` and `whiten` belong to GAE, `norm_by_std` to GRPO. Raises ValueError where what is needed is missing.
    """
    estimator = AdvantageEstimator(estimator)
    if estimator is AdvantageEstimator.GAE:
        if values is None:
            raise ValueError("advantage estimator 'gae' needs values: score the batch with a critic, or use 'grpo'")
        return compute_gae_advantage_return(token_level_rewards, values, response_mask, gamma, lam, whiten=whiten)
    if groups is None:
        raise ValueError("advantage estimator 'grpo' needs groups: the group's id of every row")
    return compute_grpo_advantage(token_level_rewards, response_mask, groups, norm_by_std=norm_by_std)
