"""Estimators that select episodes, and the loss of supervised steps: numbers worked by hand."""

import math

import pytest
import torch
from torch import Tensor

from midthought.algo.advantages import compute_advantage
from midthought.algo.losses import compute_policy_loss


def selected(name: str, scores: list[float], groups: list[int]) -> list[float]:
    """The advantage of every episode, whose reward is at its second token."""
    rewards = torch.tensor([[0.0, score] for score in scores])
    advantages, _ = compute_advantage(name, rewards, torch.ones_like(rewards), index=torch.tensor(groups))
    assert torch.equal(advantages[:, 0], advantages[:, 1])
    return advantages[:, 0].tolist()


def test_the_best_episodes_of_a_group_are_kept_and_of_an_equal_group_none():
    assert selected("keep_best", [0.2, 0.9, 0.9, 0.5, 0.5, -1.0], [0, 0, 0, 1, 1, 2]) == [0, 1, 1, 0, 0, 0]
    assert selected("keep_best", [-3.0, -2.0], [7, 7]) == [0, 1]


@pytest.mark.parametrize("scale", [1e-3, 96.0, 1e6])
def test_scores_of_any_size_are_compared(scale):
    """At 96, the distance to the next float32 is 8e-6."""
    scores, groups = [scale * score for score in (0.2, 0.9, 0.9, 0.1)], [0] * 4
    assert selected("keep_best", scores, groups) == [0, 1, 1, 0]


def test_the_loss_of_a_supervised_step_is_the_cross_entropy_of_the_kept_tokens():
    probabilities = torch.tensor([[0.5, 0.25], [0.125, 0.5]], dtype=torch.float64)
    advantages: Tensor = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    logprobs = probabilities.log().requires_grad_()
    loss, _ = compute_policy_loss(
        logprobs.detach() - 3, logprobs, advantages, torch.ones(2, 2), kind="nll", denominator=2
    )
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(0.5 * 0.25) / 2)
    assert logprobs.grad.tolist() == [[-0.5, -0.5], [0.0, 0.0]]
