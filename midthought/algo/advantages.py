"""Advantage estimators: GAE with a critic, and estimators with a group or no baseline.

Pure functions on tensors. A mask [E, T] marks policy tokens; all other tokens (prompt, tool results, padding) have no effect.
`values[e, t]` is the value of the state *before* token t. `@advantage_estimator` (the module of this name)
registers another estimator.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from midthought.algo.advantage_estimator import CreditInputs, advantage_estimator, estimate, numbered
from midthought.algo.tensors import as_mask, as_numbers, group_extremes, group_statistics, is_tie

GRPO_EPSILON = 1e-6


class AdvantageEstimator(enum.StrEnum):
    """The built-in estimators. Registered ones are used by name only."""

    GAE = "gae"
    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    RLOO = "rloo"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    GRPO_TURNS = "grpo_turns"
    GRPO_CALLS = "grpo_calls"
    KEEP_BEST = "keep_best"
    ZERO = "zero"


def compute_advantage(
    estimator: AdvantageEstimator | str,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    *,
    values: Tensor | None = None,
    index: Tensor | Sequence[Hashable] | None = None,
    turns: Tensor | None = None,
    calls: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten: bool = True,
    norm_by_std: bool = True,
) -> tuple[Tensor, Tensor]:
    """Returns (advantages, returns) of the estimator of this name, both [E, T] and 0 outside the mask.

    `values`, `turns` and `calls` are [E, T], `index` (group ids: numbers or strings) [E]; see `CreditInputs`.
    `gamma` is used by `gae`, `reinforce_plus_plus`, `grpo_turns` and `grpo_calls`; `lam` by `gae`;
    `whiten` by `gae`, `reinforce_plus_plus` and `reinforce_plus_plus_baseline`; `norm_by_std` by `grpo`, `grpo_turns` and
    `grpo_calls`.
    Raises ValueError for an unknown name, a missing input, a wrong shape, or a reward that is not finite.
    """
    inputs = CreditInputs(
        rewards=as_numbers(token_level_rewards, "token_level_rewards"),
        mask=as_mask(response_mask, "response_mask"),
        values=values,
        groups=None if index is None else numbered(index),
        turns=turns,
        calls=calls,
        gamma=gamma,
        lam=lam,
        whiten=whiten,
        norm_by_std=norm_by_std,
    )
    return estimate(estimator, inputs)


# -- with a critic -----------------------------------------------------------------------------------------------


def compute_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    *,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation over policy tokens. Returns (advantages, returns), [E, T], 0 outside the mask.

    `δ_t = r_t + γ V_next - V_t`, `A_t = δ_t + γ λ A_next`, `R_t = A_t + V_t`; *next* is the next policy token of the row
    (after the last one: 0), so tokens of tools are not discounted. Source: Schulman et al. 2015 (arXiv 1506.02438),
    equations 11 and 16. Rewards are read at policy tokens only. `whiten` (as in verl) scales the advantages to mean 0 and
    standard deviation 1 over all policy tokens of the batch; returns are not changed. Raises ValueError for a wrong shape, or
    a reward that is not finite.
    """
    return compute_advantage(
        "gae", token_level_rewards, response_mask, values=values, gamma=gamma, lam=lam, whiten=whiten
    )


@advantage_estimator("gae", needs={"values"})
def _gae(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    assert inputs.values is not None
    advantages, returns = _over_policy_tokens(inputs.rewards, inputs.values, inputs.mask, inputs.gamma, inputs.lam)
    return (whiten_advantages(advantages, inputs.mask) if inputs.whiten else advantages), returns


def _over_policy_tokens(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """GAE's advantages and returns, [E, T], as `compute_gae_advantage_return` defines them."""
    rewards = torch.where(mask, rewards, 0.0)
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
    return advantages, advantages + values


def whiten_advantages(advantages: Tensor, mask: Tensor) -> Tensor:
    """Returns `(A - mean) / sqrt(var + 1e-8)` with mean and unbiased variance over the policy tokens, 0 elsewhere.

    With fewer than two policy tokens the advantages are not changed.
    """
    count = mask.sum()
    if count < 2:
        return advantages.masked_fill(~mask, 0.0)
    above = advantages - advantages[mask].min()  # equal advantages are exactly 0 above the lowest, their mean is not
    mean = above.masked_fill(~mask, 0.0).sum() / count
    centred = (above - mean).masked_fill(~mask, 0.0)
    return centred * torch.rsqrt((centred**2).sum() / (count - 1) + 1e-8)


# -- within a group ----------------------------------------------------------------------------------------------


def compute_grpo_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Tensor | Sequence[Hashable], *, norm_by_std: bool = True
) -> tuple[Tensor, Tensor]:
    """Standardized score of the row at each of its policy tokens. Returns (advantages, returns), both [E, T] and equal.

    `A = (s - mean of the group) / (std of the group + 1e-6)`; s is the sum of the row's rewards at policy tokens, std the
    unbiased standard deviation. Source: DeepSeekMath (arXiv 2402.03300), section 4.1.2; without the division
    (`norm_by_std=False`): Dr. GRPO (arXiv 2503.20783), section 3.2. `index` [E] is the group id of every row.
    For a group of one, mean is 0 and std 1, as in verl: its advantage is its score. A zero-variance group has advantages of
    0. A row without a policy token is not a member of its group. Raises ValueError for a wrong shape, or a reward that is
    not finite.
    """
    return compute_advantage("grpo", token_level_rewards, response_mask, index=index, norm_by_std=norm_by_std)


@advantage_estimator("grpo", needs={"groups"})
def _grpo(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    return _standardised(inputs, by_std=inputs.norm_by_std)


def _standardised(inputs: CreditInputs, *, by_std: bool) -> tuple[Tensor, Tensor]:
    assert inputs.groups is not None
    centred, deviations, _ = group_statistics(inputs.scores, inputs.groups, inputs.present)
    if by_std:
        centred = centred / (deviations + GRPO_EPSILON)
    advantages = inputs.over_tokens(centred)
    return advantages, advantages


@advantage_estimator("dr_grpo", needs={"groups"})
def _dr_grpo(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = s - mean of the group`. Source: Dr. GRPO, Liu et al. 2025 (arXiv 2503.20783), section 3.2.

    Its other part, a constant instead of the length of the answer, is the aggregation `seq-mean-token-sum-norm`.
    """
    return _standardised(inputs, by_std=False)


@advantage_estimator("rloo", needs={"groups"})
def rloo(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = s - mean of the others in the group = n / (n - 1) (s - mean of the group)` at every policy token.

    Source: REINFORCE leave-one-out, Ahmadian et al. 2024 (arXiv 2402.14740). In a group of one, `A = s`.
    """
    assert inputs.groups is not None
    centred, _, counts = group_statistics(inputs.scores, inputs.groups, inputs.present)
    advantages = inputs.over_tokens(centred * counts / (counts - 1).clamp(min=1))
    return advantages, advantages


@advantage_estimator("reinforce_plus_plus_baseline", needs={"groups"})
def reinforce_plus_plus_baseline(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = whiten(s - mean of the group)`: at every policy token, whitened over all policy tokens of the batch.

    Source: REINFORCE++ with baseline, Hu et al. 2025 (arXiv 2501.03262). Without `whiten` it equals `dr_grpo`.
    """
    centred, _ = _standardised(inputs, by_std=False)
    advantages = whiten_advantages(centred, inputs.mask) if inputs.whiten else centred
    return advantages, advantages


@advantage_estimator("grpo_turns", needs={"groups", "turns"})
def grpo_turns(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """GRPO per turn: the reward-to-go of turn k, standardized over the episodes of the group that have a turn k.

    `G_k = Σ_{j ≥ k} γ^(j-k) r_j`, r_j the sum of the rewards at the policy tokens of turn j;
    `A_k = (G_k - mean_k) / (std_k + 1e-6)` at every policy token of turn k, with unbiased std. A turn that no other episode of
    the group has gets 0, because there is no comparison. This definition is our own. Closest to it: MT-GRPO (Zeng et al. 2025,
    arXiv 2505.11821), which standardizes the reward of each turn and adds the advantage of the outcome, and process
    supervision in DeepSeekMath (arXiv 2402.03300, section 4.1.3), which standardizes step rewards over all steps of the group
    and then sums them. With one turn per episode it equals `grpo`. Returns: `G_k`. Raises ValueError if a policy token has no
    turn.
    """
    assert inputs.turns is not None
    return _grpo_steps(inputs, inputs.turns, "turn")


@advantage_estimator("grpo_calls", needs={"groups", "calls"})
def grpo_calls(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """GRPO per call step: the formula of `grpo_turns` with the steps of `CreditInputs.calls`, also within one thought.

    Step k of an episode is compared with step k of the other episodes of the group that have one, whatever tool they called.
    This definition is our own. Without calls it equals `grpo`. Returns: `G_k`. Raises ValueError if a policy token has no call
    step.
    """
    assert inputs.calls is not None
    return _grpo_steps(inputs, inputs.calls, "call step")


def _grpo_steps(inputs: CreditInputs, steps: Tensor, noun: str) -> tuple[Tensor, Tensor]:
    """GRPO per step as in `grpo_turns`; `steps` [E, T] is the number of the step of every policy token."""
    assert inputs.groups is not None
    mask = inputs.mask
    steps = torch.where(mask, steps, 0)
    if (steps < 0).any():
        row, token = (steps < 0).nonzero()[0].tolist()
        raise ValueError(
            f"policy token {token} of episode {row} has the {noun} {int(steps[row, token])}; {noun}s start at 0"
        )
    num_steps = int(steps.max()) + 1 if steps.numel() else 1
    rewards = torch.where(mask, inputs.rewards, 0.0)
    by_step = rewards.new_zeros(len(rewards), num_steps).scatter_add(1, steps, rewards)  # [E, K]
    no_values, every = torch.zeros_like(by_step), torch.ones_like(by_step, dtype=torch.bool)
    to_go = _over_policy_tokens(by_step, no_values, every, inputs.gamma, 1.0)[1]
    present = torch.zeros_like(to_go).scatter_add(1, steps, mask.to(to_go.dtype)) > 0
    _, member = torch.unique(inputs.groups, return_inverse=True)
    places = member[:, None] * num_steps + torch.arange(num_steps, device=member.device)
    centred, deviations, counts = group_statistics(to_go.flatten(), places.flatten(), present.flatten())
    centred = torch.where(counts > 1, centred, 0.0)
    if inputs.norm_by_std:
        centred = centred / (deviations + GRPO_EPSILON)
    advantages = torch.where(mask, centred.unflatten(0, to_go.shape).gather(1, steps), 0.0)
    return advantages, torch.where(mask, to_go.gather(1, steps), 0.0)


@advantage_estimator("keep_best", needs={"groups"})
def keep_best(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = 1` if s is the highest score of the group and not also the lowest, else 0. Equal scores are all kept.

    Source: RAFT, Dong et al. 2023 (arXiv 2304.06767), algorithm 1, which keeps one of equal scores. With rewards of 0 and 1 these
    are the correct answers to the tasks that are neither always nor never solved. A run does not score the others at all: it
    trains on what `rollout.selection.select` kept. With `policy_loss=nll` this is rejection-sampling fine-tuning.
    """
    assert inputs.groups is not None
    lowest, highest = group_extremes(inputs.scores, inputs.groups, inputs.present)
    is_kept = is_tie(inputs.scores, highest) & ~is_tie(lowest, highest)
    advantages = inputs.over_tokens(is_kept.to(inputs.rewards))
    return advantages, advantages


# -- without a group ---------------------------------------------------------------------------------------------


@advantage_estimator("reinforce_plus_plus")
def reinforce_plus_plus(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = whiten(R)`, `R_t = r_t + γ R_next` over policy tokens; whitened over all of them in the batch. Returns: R.

    Source: REINFORCE++, Hu et al. 2025 (arXiv 2501.03262). Its KL penalty is `kl_coef`, which the rewards include. *Next* is the
    next policy token: tokens of tools neither discount nor end the return.
    """
    no_values = torch.zeros_like(inputs.rewards)
    _, returns = _over_policy_tokens(inputs.rewards, no_values, inputs.mask, inputs.gamma, 1.0)
    return (whiten_advantages(returns, inputs.mask) if inputs.whiten else returns), returns


@advantage_estimator("zero")
def zero(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = 0`: rewards are logged, not learned from. For distillation, whose term is added (`training.teacher`)."""
    advantages = torch.zeros_like(inputs.rewards)
    return advantages, advantages
