"""Advantages: GAE, whitening and selection by hand, and edge cases. Every estimator by hand: `test_worked_example.py`."""

import math

import pytest
import torch

from midthought.algo.advantages import (
    AdvantageEstimator,
    compute_advantage,
    compute_gae_advantage_return,
    compute_grpo_advantage,
    whiten_advantages,
)
from midthought.config import TrainingConfig


def close(actual: torch.Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_gae_skips_tool_tokens_as_if_they_were_absent():
    # without the tool tokens (values 99 and NaN): δ3 = 1 - 0.2 = 0.8; δ2 = 0.5·0.2 - 0.4 = -0.3; δ1 = 0.5·0.4 - 0.5 = -0.3;
    # γλ = 0.25: A3 = 0.8; A2 = -0.3 + 0.25·0.8 = -0.1; A1 = -0.3 + 0.25·(-0.1) = -0.325
    rewards = torch.tensor([[0.0, 7.0, 0.0, 0.0, 1.0]])
    values = torch.tensor([[0.5, 99.0, float("nan"), 0.4, 0.2]])
    mask = torch.tensor([[True, False, False, True, True]])
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, 0.5, 0.5, whiten=False)
    close(advantages, [[-0.325, 0.0, 0.0, -0.1, 0.8]])
    close(returns, [[0.175, 0.0, 0.0, 0.3, 1.0]])


def test_whitening_gives_mean_zero_and_unbiased_deviation_one_over_policy_tokens():
    # the masked entries 1, 2, 3: mean 2, unbiased deviation 1
    advantages = torch.tensor([[1.0, 50.0, 2.0], [3.0, float("nan"), 8.0]])
    mask = torch.tensor([[True, False, True], [True, False, False]])
    close(whiten_advantages(advantages, mask), [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    close(whiten_advantages(torch.tensor([[3.0, 5.0]]), torch.tensor([[True, False]])), [[3.0, 0.0]])  # a single one


REWARDS = torch.tensor([[0.0, 9.0, 1.0], [0.5, 0.0, 0.0], [0.0, 0.0, 3.0]])
MASK = torch.tensor([[True, False, True], [True, True, False], [True, True, True]])
"""Three episodes of one group: scores 1 (the 9 stands on a tool token), 0.5, 3; mean 1.5."""
GROUP = torch.tensor([4, 4, 4])


def test_without_whitening_and_division_returns_and_differences_from_the_mean_remain():
    # γ = 0.5: returns 0.5, -, 1 | 0.5, 0, - | 0.75, 1.5, 3
    plain, returns = compute_advantage("reinforce_plus_plus", REWARDS, MASK, gamma=0.5, whiten=False)
    close(returns, [[0.5, 0.0, 1.0], [0.5, 0.0, 0.0], [0.75, 1.5, 3.0]])
    assert torch.equal(plain, returns)
    centred = compute_advantage("dr_grpo", REWARDS, MASK, index=GROUP)[0]
    baseline = compute_advantage("reinforce_plus_plus_baseline", REWARDS, MASK, index=GROUP, whiten=False)[0]
    assert torch.equal(baseline, centred)
    assert torch.equal(compute_grpo_advantage(REWARDS, MASK, GROUP, norm_by_std=False)[0], centred)


def test_three_episodes_of_a_group_are_compared_with_each_other_and_later_turns_are_discounted():
    # the others' means: 1.75, 2, 0.75
    close(compute_advantage("rloo", REWARDS, MASK, index=GROUP)[0][:, 0], [-0.75, -1.5, 2.25])
    # γ = 0.5: first turn 0.5, 0.5, 1.5 (std √(1/3)); second turn 1, 0, 3 (std √(7/3))
    turns = torch.tensor([[0, -1, 1], [0, 1, -1], [0, 0, 1]])
    found, to_go = compute_advantage("grpo_turns", REWARDS, MASK, index=GROUP, turns=turns, gamma=0.5)
    close(to_go, [[0.5, 0.0, 1.0], [0.5, 0.0, 0.0], [1.5, 1.5, 3.0]])
    close(found, [[-0.577349, 0.0, -0.218217], [-0.577349, -0.872871, 0.0], [1.154698, 1.154698, 1.091088]])


@pytest.mark.parametrize(("kind", "name"), [("turns", "turn"), ("calls", "call step")])
def test_a_policy_token_without_a_step_is_named(kind, name):
    steps = torch.tensor([[0, -1, 1], [0, -1, -1], [0, 0, 0]])
    with pytest.raises(ValueError, match=f"policy token 1 of episode 1 has the {name} -1"):
        compute_advantage(f"grpo_{kind}", REWARDS, MASK, index=GROUP, **{kind: steps})


IN_GROUPS = ["grpo", "dr_grpo", "rloo", "grpo_turns", "grpo_calls"]


def in_groups(name: str, rewards: torch.Tensor, mask: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    steps = torch.zeros(mask.shape, dtype=torch.int64)
    return compute_advantage(name, rewards, mask, index=groups, turns=steps, calls=steps)[0]


@pytest.mark.parametrize(
    ("name", "expected"), [("grpo", 0.75), ("dr_grpo", 0.75), ("rloo", 0.75), ("grpo_turns", 0.0), ("grpo_calls", 0.0)]
)
def test_a_group_of_one_keeps_its_score_but_for_steps(name, expected):
    rewards, everywhere = torch.tensor([[0.75], [1.0], [0.0]]), torch.ones(3, 1, dtype=torch.bool)
    assert float(in_groups(name, rewards, everywhere, torch.tensor([0, 1, 1]))[0]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", IN_GROUPS)
def test_an_episode_without_a_policy_token_is_no_member_of_its_group(name):
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [5.0, 5.0]])
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    with_it = in_groups(name, rewards, mask, torch.tensor([0, 0, 0]))
    without = in_groups(name, rewards[:2], mask[:2], torch.tensor([0, 0]))
    assert torch.equal(with_it[:2], without) and not with_it[2].any()


@pytest.mark.parametrize("name", list(AdvantageEstimator))
def test_a_batch_without_any_policy_token_has_no_advantage(name):
    nothing, none = torch.full((2, 3), math.nan), torch.full((2, 3), -1)
    given = {"values": nothing, "index": torch.tensor([0, 0]), "turns": none, "calls": none}
    advantages, returns = compute_advantage(name, nothing, torch.zeros(2, 3), **given)
    assert not advantages.any() and not returns.any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"calls": torch.zeros(3, 2)}, r"calls have the shape \[3, 2\], the mask requires \[3, 3\]"),
        ({"index": torch.zeros(2)}, r"groups have the shape \[2\], the mask requires \[3\]"),
        ({"response_mask": torch.zeros(3)}, r"the mask must have the shape \[episodes, tokens\], got \[3\]"),
        ({"response_mask": torch.zeros(3, 0)}, r"the mask must have the shape .*, got \[3, 0\]"),
    ],
)
def test_a_wrong_shape_is_named_with_the_right_one(wrong, message):
    given = {"token_level_rewards": REWARDS, "response_mask": MASK, "values": REWARDS, "index": GROUP, **wrong}
    with pytest.raises(ValueError, match=message):
        compute_advantage("gae", **given)


COMPARING = [
    name.value for name in AdvantageEstimator if TrainingConfig.estimator_needs[name] & {"groups", "turns", "calls"}
]
"""Estimators that compare an episode with its group."""
STEPS = torch.tensor([0, 0, 1, 1])


def advantages(name, rewards) -> torch.Tensor:
    """Of one group, whose first episode has fewer policy tokens."""
    rewards = torch.as_tensor(rewards)
    mask = torch.ones(rewards.shape, dtype=torch.bool)
    mask[0, 0] = False
    steps = STEPS.expand(rewards.shape)
    return compute_advantage(name, rewards, mask, index=[0] * len(rewards), turns=steps, calls=steps)[0]


@pytest.mark.parametrize("number", [3, 7, 8, 13])
@pytest.mark.parametrize("value", [0.1, -0.7, 1234.567, 1e6 + 0.1])
@pytest.mark.parametrize("name", COMPARING)
def test_a_group_of_equal_rewards_has_no_advantage_although_float32_rounds_mean_sums_and_deviation(name, value, number):
    rewards = torch.zeros(number, 4)
    rewards[:, 1] = rewards[:, 3] = value
    assert not advantages(name, rewards).any()
    if name not in ("grpo_turns", "grpo_calls"):  # 0.1 + 0.2 and 0.3 differ in float32
        assert not advantages(name, [[0.0, 0.1, 0.0, 0.2], [0.0, 0.0, 0.0, 0.3], [0.0, 0.2, 0.0, 0.1]]).any()


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
@pytest.mark.parametrize("value", [0.1, 1234.567, 1e6 + 0.1])
def test_equal_returns_are_whitened_to_zero(name, value):
    rewards = torch.zeros(7, 4)
    rewards[:, 3] = value
    found = compute_advantage(name, rewards, torch.ones(7, 4), values=torch.zeros(7, 4))[0]
    assert not found.any()


@pytest.mark.parametrize(("name", "expected"), [("grpo", 2**-0.5), ("dr_grpo", 0.5), ("rloo", 1.0)])
def test_a_difference_that_is_small_beside_the_rewards_remains(name, expected):
    rewards = torch.tensor([[0.0, 100_001.0], [0.0, 100_000.0]])
    found = compute_advantage(name, rewards, torch.ones(2, 2), index=[0, 0])[0]
    assert found[:, 0].tolist() == pytest.approx([expected, -expected], rel=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 96.0, 1e6])
def test_the_best_episodes_of_a_group_are_kept_whatever_the_size_of_their_scores_and_of_an_equal_group_none(scale):
    """At 96, the distance to the next float32 is 8e-6."""
    scores, groups = [0.2, 0.9, 0.9, 0.5, 0.5, -1.0, -3.0, -2.0], [0, 0, 0, 1, 1, 2, 7, 7]
    rewards = torch.tensor([[0.0, scale * score] for score in scores])
    found, _ = compute_advantage("keep_best", rewards, torch.ones_like(rewards), index=groups)
    assert found[:, 0].tolist() == found[:, 1].tolist() == [0, 1, 1, 0, 0, 0, 0, 1]
