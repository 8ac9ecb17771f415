"""Estimators that select the episodes to train on: an episode with advantage 0 leaves the batch before it is scored.

With `policy_loss=nll` this is rejection-sampling fine-tuning.
"""

from __future__ import annotations

import torch
from torch import Tensor

from midthought.algo.credit import CreditInputs, advantage_estimator
from midthought.algo.groups import TIE, group_extremes, is_tie


@advantage_estimator("keep_best", needs={"groups"}, selects=True)
def keep_best(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = 1` if s is the highest score of the group and not also the lowest, else 0. Equal scores are all kept.

    Source: RAFT, Dong et al. 2023 (arXiv 2304.06767), algorithm 1, which keeps one of equal scores. With rewards of 0 and 1 these
    are the correct answers to the tasks that are neither always nor never solved.
    """
    lowest, highest = _extremes(inputs)
    return _over_tokens(inputs, is_tie(inputs.scores, highest) & ~is_tie(lowest, highest))


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

    A group whose scores are equal has no pair.
    """
    lowest, highest = _extremes(inputs)
    assert inputs.groups is not None
    differs = inputs.present & ~is_tie(lowest, highest)
    best = _first_of_group(differs & is_tie(inputs.scores, highest), inputs.groups)
    worst = _first_of_group(differs & is_tie(inputs.scores, lowest), inputs.groups)
    advantages = inputs.over_tokens(best.to(inputs.rewards) - worst.to(inputs.rewards))
    return advantages, advantages


def _first_of_group(is_candidate: Tensor, groups: Tensor) -> Tensor:
    """[E] bool -> [E] bool: only the first candidate of each group."""
    _, member = torch.unique(groups, return_inverse=True)
    index = torch.arange(len(groups), device=groups.device)
    first = index.new_full((len(groups),), len(groups))
    first = first.scatter_reduce(0, member[is_candidate], index[is_candidate], "amin")
    return is_candidate & (first[member] == index)


def _extremes(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    assert inputs.groups is not None
    return group_extremes(inputs.scores, inputs.groups, inputs.present)


def _over_tokens(inputs: CreditInputs, is_kept: Tensor) -> tuple[Tensor, Tensor]:
    advantages = inputs.over_tokens(is_kept.to(inputs.rewards))
    return advantages, advantages
