"""Estimators that select the episodes to train on: an episode with advantage 0 leaves the batch before it is scored.

With `policy_loss=nll` this is rejection-sampling fine-tuning, with `policy_loss=dpo` and pairs it is DPO.
"""

from __future__ import annotations

import torch
from torch import Tensor

from midthought.algo.credit import CreditInputs, advantage_estimator

TIE = 1e-6
"""Scores are equal if they differ by this share of the larger one or less: an episode's rewards are summed in float32."""


@advantage_estimator("keep_best", needs={"groups"}, selects=True)
def keep_best(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = 1` if s is the highest score of the group and not also the lowest, else 0. Equal scores are all kept.

    Source: RAFT, Dong et al. 2023 (arXiv 2304.06767), algorithm 1, which keeps one of equal scores. With rewards of 0 and 1 these
    are the correct answers to the tasks that are neither always nor never solved.
    """
    lowest, highest = group_extremes(inputs)
    return _over_tokens(inputs, _is_tie(inputs.scores, highest) & ~_is_tie(lowest, highest))


@advantage_estimator("keep_above", selects=True)
def keep_above(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = 1` if `s ≥ keep_threshold`, else 0.

    Sources: RFT, Yuan et al. 2023 (arXiv 2308.01825), section 3.2, which keeps correct answers; ReST-EM, Singh et al. 2023
    (arXiv 2312.06585), algorithm 1.
    """
    return _over_tokens(inputs, inputs.scores >= inputs.keep_threshold - TIE * abs(inputs.keep_threshold))


@advantage_estimator("best_and_worst", needs={"groups"}, selects=True)
def best_and_worst(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = 1` for the best and -1 for the worst episode of each group (the first of equal ones), 0 for the others.

    The pairs of `policy_loss=dpo`. A group whose scores are equal has no pair.
    """
    lowest, highest = group_extremes(inputs)
    assert inputs.groups is not None
    differs = inputs.present & ~_is_tie(lowest, highest)
    best = _first_of_group(differs & _is_tie(inputs.scores, highest), inputs.groups)
    worst = _first_of_group(differs & _is_tie(inputs.scores, lowest), inputs.groups)
    advantages = inputs.over_tokens(best.to(inputs.rewards) - worst.to(inputs.rewards))
    return advantages, advantages


def _is_tie(one: Tensor, other: Tensor) -> Tensor:
    return torch.isclose(one, other, rtol=TIE, atol=0.0)


def _first_of_group(is_candidate: Tensor, groups: Tensor) -> Tensor:
    """[E] bool -> [E] bool: only the first candidate of each group."""
    _, member = torch.unique(groups, return_inverse=True)
    index = torch.arange(len(groups), device=groups.device)
    first = index.new_full((len(groups),), len(groups))
    first = first.scatter_reduce(0, member[is_candidate], index[is_candidate], "amin")
    return is_candidate & (first[member] == index)


def group_extremes(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """Returns the lowest and the highest score of every episode's group, each [E]. Only `present` episodes are members."""
    assert inputs.groups is not None
    _, member = torch.unique(inputs.groups, return_inverse=True)
    scores, present = inputs.scores, inputs.present
    found = scores.new_zeros(int(member.max()) + 1 if len(member) else 0)
    lowest = found.scatter_reduce(0, member[present], scores[present], "amin", include_self=False)
    highest = found.scatter_reduce(0, member[present], scores[present], "amax", include_self=False)
    return lowest[member], highest[member]


def _over_tokens(inputs: CreditInputs, is_kept: Tensor) -> tuple[Tensor, Tensor]:
    advantages = inputs.over_tokens(is_kept.to(inputs.rewards))
    return advantages, advantages
