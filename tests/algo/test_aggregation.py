"""Averages over an optimizer step, by hand, and what they refuse."""

import pytest
import torch

from midthought.algo.aggregation import LossAggregation, loss_weights
from midthought.algo.losses import masked_average

LOSSES = torch.tensor([[1.0, 50.0, 3.0], [5.0, 0.0, 0.0], [2.0, 4.0, 6.0]])
MASK = torch.tensor([[True, False, True], [True, False, False], [True, True, True]])
EPISODES = torch.tensor([7, 7, 3])[:, None].expand(3, 3)
"""Episode 7 has two segments: 1, 3 and 5 (mean 3, sum 9); episode 3 has 2, 4, 6 (mean 4, sum 12)."""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token-mean", 21 / 6),
        ("seq-mean-token-mean", (3 + 4) / 2),
        ("seq-mean-token-sum", (9 + 12) / 2),
        ("seq-mean-token-sum-norm", (9 + 12) / 2 / 10),
    ],
)
def test_an_episode_counts_as_one_sequence_however_many_segments_it_has(kind, expected):
    weights, denominator = loss_weights(MASK, EPISODES, kind, norm_tokens=10)
    assert float(masked_average(LOSSES, MASK, denominator, weights)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", list(LossAggregation))
def test_episodes_without_a_policy_token_are_not_counted(kind):
    rows = torch.tensor([0, 1, 2, 2])
    mask, episodes = MASK[rows].clone(), torch.tensor([7, 7, 3, 9])[:, None].expand(4, 3)
    mask[3] = False
    weights, denominator = loss_weights(mask, episodes, kind, norm_tokens=10)
    whole = loss_weights(MASK, EPISODES, kind, norm_tokens=10)
    average = masked_average(LOSSES[rows], mask, denominator, weights)
    torch.testing.assert_close(average, masked_average(LOSSES, MASK, whole[1], whole[0]))


@pytest.mark.parametrize("constant", [None, 0])
def test_dr_grpos_average_needs_its_constant(constant):
    with pytest.raises(ValueError, match=f"needs a number of tokens to divide by, got {constant}"):
        loss_weights(MASK, EPISODES, "seq-mean-token-sum-norm", constant)
