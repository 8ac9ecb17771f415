"""Advantages: numbers worked by hand, and edge cases."""

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


def close(actual: torch.Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_gae_over_three_tokens_is_as_worked_by_hand():
    # δ3 = 1 - 0.2 = 0.8; δ2 = 0.5·0.2 - 0.4 = -0.3; δ1 = 0.5·0.4 - 0.5 = -0.3; γλ = 0.25
    # A3 = 0.8; A2 = -0.3 + 0.25·0.8 = -0.1; A1 = -0.3 + 0.25·(-0.1) = -0.325
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.4, 0.2]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, 0.5, 0.5, whiten=False)
    close(advantages, [[-0.325, -0.1, 0.8]])
    close(returns, [[0.175, 0.3, 1.0]])


def test_gae_skips_tool_tokens_as_if_they_were_absent():
    # the same three policy tokens, with two tool tokens (values 99 and NaN) between the first and the second
    rewards = torch.tensor([[0.0, 7.0, 0.0, 0.0, 1.0]])
    values = torch.tensor([[0.5, 99.0, float("nan"), 0.4, 0.2]])
    mask = torch.tensor([[True, False, False, True, True]])
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, 0.5, 0.5, whiten=False)
    close(advantages, [[-0.325, 0.0, 0.0, -0.1, 0.8]])
    close(returns, [[0.175, 0.0, 0.0, 0.3, 1.0]])


def test_gae_without_discount_gives_every_token_the_rest_of_the_rewards_as_its_return():
    rewards, values = torch.tensor([[0.25, 0.0, 1.0]]), torch.tensor([[0.5, 0.4, 0.2]])
    _, returns = compute_gae_advantage_return(rewards, values, torch.ones(1, 3), 1.0, 1.0)
    close(returns, [[1.25, 1.0, 1.0]])


def test_whitening_gives_mean_zero_and_unbiased_deviation_one_over_policy_tokens():
    # the masked entries 1, 2, 3: mean 2, unbiased deviation 1
    advantages = torch.tensor([[1.0, 50.0, 2.0], [3.0, float("nan"), 8.0]])
    mask = torch.tensor([[True, False, True], [True, False, False]])
    close(whiten_advantages(advantages, mask), [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])


def test_whitening_a_single_token_leaves_it_as_it_is():
    close(whiten_advantages(torch.tensor([[3.0, 5.0]]), torch.tensor([[True, False]])), [[3.0, 0.0]])


def test_grpo_standardises_scores_within_each_group_by_the_unbiased_deviation():
    # group 7: scores 1, 0, 0.5 -> mean 0.5, unbiased deviation 0.5 -> 1, -1, 0; group 3: scores 2, 0 -> ± 1 / √2
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.5, 0.0], [2.0, 0.0], [0.0, 0.0]])
    mask = torch.tensor([[True, True], [False, True], [True, False], [True, True], [True, True]])
    advantages, returns = compute_grpo_advantage(rewards, mask, torch.tensor([7, 7, 7, 3, 3]))
    half = 0.5**0.5
    expected = [[1.0, 1.0], [0.0, -1.0], [0.0, 0.0], [half, half], [-half, -half]]
    torch.testing.assert_close(advantages, torch.tensor(expected), atol=1e-5, rtol=1e-5)
    assert torch.equal(advantages, returns)


def test_grpo_gives_a_group_of_one_its_score_and_a_group_without_spread_zero():
    rewards = torch.tensor([[0.75], [1.0], [1.0]])
    advantages, _ = compute_grpo_advantage(rewards, torch.ones(3, 1), torch.tensor([0, 1, 1]))
    torch.testing.assert_close(advantages, torch.tensor([[0.75], [0.0], [0.0]]), atol=1e-5, rtol=1e-5)


def test_grpo_without_the_division_subtracts_the_mean_only():
    rewards = torch.tensor([[4.0], [1.0]])
    advantages, _ = compute_grpo_advantage(rewards, torch.ones(2, 1), torch.tensor([0, 0]), norm_by_std=False)
    close(advantages, [[1.5], [-1.5]])


# -- estimators without a critic, by hand --------------------------------------------------------------------------

REWARDS = torch.tensor([[0.0, 9.0, 1.0], [0.5, 0.0, 0.0], [0.0, 0.0, 3.0]])
MASK = torch.tensor([[True, False, True], [True, True, False], [True, True, True]])
"""Three episodes of one group: scores 1 (the 9 stands on a tool token), 0.5, 3; mean 1.5."""
GROUP = torch.tensor([4, 4, 4])


def test_dr_grpo_subtracts_the_mean_of_the_group():
    advantages, _ = compute_advantage("dr_grpo", REWARDS, MASK, index=GROUP)
    close(advantages, [[-0.5, 0.0, -0.5], [-1.0, -1.0, 0.0], [1.5, 1.5, 1.5]])


def test_rloo_subtracts_the_mean_of_the_others():
    # 1 - (0.5 + 3) / 2 = -0.75; 0.5 - (1 + 3) / 2 = -1.5; 3 - (1 + 0.5) / 2 = 2.25
    advantages, _ = compute_advantage("rloo", REWARDS, MASK, index=GROUP)
    close(advantages, [[-0.75, 0.0, -0.75], [-1.5, -1.5, 0.0], [2.25, 2.25, 2.25]])


def test_reinforce_plus_plus_whitens_the_discounted_return_and_skips_tool_tokens():
    # γ = 0.5: returns 0.5, -, 1 | 0.5, 0, - | 0.75, 1.5, 3
    returns = torch.tensor([[0.5, 0.0, 1.0], [0.5, 0.0, 0.0], [0.75, 1.5, 3.0]])
    advantages, found = compute_advantage("reinforce_plus_plus", REWARDS, MASK, gamma=0.5)
    close(found, returns.tolist())
    # the seven returns: sum 7.25, mean 1.035714, squared distances 5.803571, deviation √(5.803571 / 6) = 0.983495
    close(advantages[0], [(0.5 - 1.0357143) / 0.9834947, 0.0, (1.0 - 1.0357143) / 0.9834947])
    plain, _ = compute_advantage("reinforce_plus_plus", REWARDS, MASK, gamma=0.5, whiten=False)
    assert torch.equal(plain, found)


def test_reinforce_plus_plus_with_baseline_whitens_what_is_left_after_the_mean_of_the_group():
    # -0.5 twice, -1 twice, 1.5 three times: mean 1.5 / 7, squared distances 0.5 + 2 + 6.75 - 1.5² / 7 = 8.928571
    advantages, _ = compute_advantage("reinforce_plus_plus_baseline", REWARDS, MASK, index=GROUP)
    mean, deviation = 1.5 / 7, (8.928571 / 6) ** 0.5
    low, lower, high = ((centred - mean) / deviation for centred in (-0.5, -1.0, 1.5))
    close(advantages, [[low, 0.0, low], [lower, lower, 0.0], [high, high, high]])
    plain, _ = compute_advantage("reinforce_plus_plus_baseline", REWARDS, MASK, index=GROUP, whiten=False)
    assert torch.equal(plain, compute_advantage("dr_grpo", REWARDS, MASK, index=GROUP)[0])


def test_turn_level_grpo_compares_every_turns_reward_to_go_within_the_group():
    # turns' rewards: 1, 2 | 0, 0 | 5; to go: 3, 2 | 0, 0 | 5
    # turn 0: 3, 0, 5: mean 8/3, deviation √((1/9 + 64/9 + 49/9) / 2) = 2.516611; turn 1: 2, 0: mean 1, deviation √2
    rewards = torch.tensor([[1.0, 7.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [5.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, False, True, True], [True, True, True, False], [True, False, False, False]])
    turns = torch.tensor([[0, -1, 1, 1], [0, 0, 1, -1], [0, -1, -1, -1]])
    advantages, returns = compute_advantage("grpo_turns", rewards, mask, index=torch.zeros(3), turns=turns)
    first = [(to_go - 8 / 3) / 2.516611 for to_go in (3.0, 0.0, 5.0)]
    second = [(to_go - 1) / 2**0.5 for to_go in (2.0, 0.0)]
    close(
        advantages, [[first[0], 0.0, second[0], second[0]], [first[1], first[1], second[1], 0.0], [first[2], 0, 0, 0]]
    )
    close(returns, [[3.0, 0.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0], [5.0, 0.0, 0.0, 0.0]])


def test_a_turn_that_no_other_episode_of_the_group_reached_has_nothing_to_be_compared_with():
    rewards, mask = torch.tensor([[1.0, 4.0], [0.0, 0.0]]), torch.tensor([[True, True], [True, False]])
    turns = torch.tensor([[0, 1], [0, -1]])
    advantages, _ = compute_advantage("grpo_turns", rewards, mask, index=torch.zeros(2), turns=turns)
    close(advantages, [[0.5**0.5, 0.0], [-(0.5**0.5), 0.0]])


# -- call steps ----------------------------------------------------------------------------------------------------


def test_call_level_grpo_compares_the_first_calls_the_second_calls_and_what_follows_them():
    # rewards of the steps: 1, 0, 1 | 0, 1, 0 | 0, 2; to go: 2, 1, 1 | 1, 1, 0 | 2, 2; a tool's result has a rubbish reward
    # step 0: 2, 1, 2: mean 5/3, deviation √(1/3); step 1: 1, 1, 2: mean 4/3, deviation √(1/3); step 2: 1, 0: ½, √½
    rewards = torch.tensor([[1.0, 9.0, 0.0, 1.0], [0.0, 1.0, 9.0, 0.0], [0.0, 9.0, 0.0, 2.0]])
    mask = torch.tensor([[True, False, True, True], [True, True, False, True], [True, False, True, True]])
    calls = torch.tensor([[0, -1, 1, 2], [0, 1, -1, 2], [0, -1, 1, 1]])
    advantages, returns = compute_advantage("grpo_calls", rewards, mask, index=torch.zeros(3), calls=calls)
    third, half = 3**-0.5, 0.5**0.5
    close(advantages, [[third, 0, -third, half], [-2 * third, -third, 0, -half], [third, 0, 2 * third, 2 * third]])
    close(returns, [[2.0, 0, 1.0, 1.0], [1.0, 1.0, 0, 0.0], [2.0, 0, 2.0, 2.0]])


@pytest.mark.parametrize(("gamma", "first"), [(0.5, [2.5, 0.0]), (0.0, [2.0, 0.0])])
def test_gamma_discounts_the_rewards_of_later_call_steps(gamma, first):
    rewards = torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    mask, calls = torch.tensor([[True, False, True], [True, True, True]]), torch.tensor([[0, -1, 1], [0, 0, 1]])
    options = {"index": torch.zeros(2), "calls": calls, "gamma": gamma, "norm_by_std": False}
    advantages, returns = compute_advantage("grpo_calls", rewards, mask, **options)
    close(returns, [[first[0], 0, 1.0], [0.0, 0.0, 0.0]])
    half = first[0] / 2
    close(advantages, [[half, 0, 0.5], [-half, -half, -0.5]])


@pytest.mark.parametrize(("kind", "name"), [("turns", "turn"), ("calls", "call step")])
def test_a_policy_token_without_a_step_is_named(kind, name):
    steps = torch.tensor([[0, -1, 1], [0, -1, -1], [0, 0, 0]])
    with pytest.raises(ValueError, match=f"policy token 1 of episode 1 has the {name} -1"):
        compute_advantage(f"grpo_{kind}", REWARDS, MASK, index=GROUP, **{kind: steps})


# -- groups and rows that say nothing ------------------------------------------------------------------------------

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
    advantages, returns = compute_advantage(
        name,
        torch.full((2, 3), math.nan),
        torch.zeros(2, 3),
        values=torch.full((2, 3), math.nan),
        index=torch.tensor([0, 0]),
        turns=torch.full((2, 3), -1),
        calls=torch.full((2, 3), -1),
    )
    assert not advantages.any() and not returns.any()


# -- bad input -----------------------------------------------------------------------------------------------------


def test_an_unknown_estimator_is_told_with_the_near_names():
    with pytest.raises(ValueError, match=r"unknown advantage estimator 'gea'\. Did you mean 'gae'"):
        compute_advantage("gea", REWARDS, MASK)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"token_level_rewards": torch.zeros(3, 4)}, r"rewards have the shape \[3, 4\], the mask requires \[3, 3\]"),
        ({"values": torch.zeros(3)}, r"values have the shape \[3\], the mask requires \[3, 3\]"),
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
