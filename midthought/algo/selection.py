"""Estimators that select the episodes to train on: an episode with advantage 0 leaves the batch before it is scored.

With `policy_loss=nll` this is rejection-sampling fine-tuning.
"""

from __future__ import annotations

from torch import Tensor

from midthought.algo.credit import CreditInputs, advantage_estimator
from midthought.algo.groups import group_extremes, is_tie


@advantage_estimator("keep_best", needs={"groups"}, selects=True)
def keep_best(inputs: CreditInputs) -> tuple[Tensor, Tensor]:
    """`A = 1` if s is the highest score of the group and not also the lowest, else 0. Equal scores are all kept.

    Source: RAFT, Dong et al. 2023 (arXiv 2304.06767), algorithm 1, which keeps one of equal scores. With rewards of 0 and 1 these
    are the correct answers to the tasks that are neither always nor never solved.
    """
    assert inputs.groups is not None
    lowest, highest = group_extremes(inputs.scores, inputs.groups, inputs.present)
    is_kept = is_tie(inputs.scores, highest) & ~is_tie(lowest, highest)
    advantages = inputs.over_tokens(is_kept.to(inputs.rewards))
    return advantages, advantages
