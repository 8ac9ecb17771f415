"""Equal rewards give advantages of 0 although float32 rounds their mean, their sums, and their deviation."""

from __future__ import annotations

import pytest
import torch

from midthought.algo.advantages import AdvantageEstimator, compute_advantage
from midthought.config import TrainingConfig

COMPARING = [
    name.value for name in AdvantageEstimator if TrainingConfig.estimator_needs[name] & {"groups", "turns", "calls"}
]
"""Estimators that compare an episode with its group."""
STEPS = torch.tensor([0, 0, 1, 1])


def advantages(name: str, rewards: torch.Tensor) -> torch.Tensor:
    """Of one group, whose first episode has fewer policy tokens."""
    mask = torch.ones(rewards.shape, dtype=torch.bool)
    mask[0, 0] = False
    steps = STEPS.expand(rewards.shape)
    return compute_advantage(name, rewards, mask, index=[0] * len(rewards), turns=steps, calls=steps)[0]


@pytest.mark.parametrize("number", [3, 7, 8, 13])
@pytest.mark.parametrize("value", [0.1, -0.7, 1234.567, 1e6 + 0.1])
@pytest.mark.parametrize("name", COMPARING)
def test_a_group_of_equal_rewards_has_no_advantage(name: str, value: float, number: int) -> None:
    rewards = torch.zeros(number, 4)
    rewards[:, 1] = rewards[:, 3] = value
    assert not advantages(name, rewards).any()


@pytest.mark.parametrize("name", [name for name in COMPARING if name not in ("grpo_turns", "grpo_calls")])
def test_sums_that_differ_only_by_rounding_are_equal(name: str) -> None:
    """0.1 + 0.2 and 0.3 differ in float32."""
    rewards = torch.tensor([[0.0, 0.1, 0.0, 0.2], [0.0, 0.0, 0.0, 0.3], [0.0, 0.2, 0.0, 0.1]])
    assert not advantages(name, rewards).any()


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
@pytest.mark.parametrize("value", [0.1, 1234.567, 1e6 + 0.1])
def test_equal_returns_are_whitened_to_zero(name: str, value: float) -> None:
    rewards = torch.zeros(7, 4)
    rewards[:, 3] = value
    found = compute_advantage(name, rewards, torch.ones(7, 4), values=torch.zeros(7, 4))[0]
    assert not found.any()


@pytest.mark.parametrize(("name", "expected"), [("grpo", 2**-0.5), ("dr_grpo", 0.5), ("rloo", 1.0)])
def test_a_difference_that_is_small_beside_the_rewards_remains(name: str, expected: float) -> None:
    rewards = torch.tensor([[0.0, 100_001.0], [0.0, 100_000.0]])
    found = compute_advantage(name, rewards, torch.ones(2, 2), index=[0, 0])[0]
    assert found[:, 0].tolist() == pytest.approx([expected, -expected], rel=1e-5)
