"""Advantages: numbers worked by hand, what must not matter, and verl as an oracle where it is installed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midthought.algo.advantages import (
    AdvantageEstimator,
    compute_advantage,
    compute_gae_advantage_return,
    compute_grpo_advantage,
    whiten_advantages,
)


def close(actual: torch.Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-6, rtol=1e-5)


def random_batch(seed: int, rows: int = 4, length: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, length, generator=generator) < 0.6
    mask[:, 3] = True
    rewards = torch.randn(rows, length, generator=generator) * mask
    return rewards, torch.randn(rows, length, generator=generator), mask


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


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.floats(0.5, 1.0), lam=st.floats(0.0, 1.0))
def test_gae_is_the_same_with_tool_tokens_changed_rows_permuted_and_padding_added(seed, gamma, lam):
    rewards, values, mask = random_batch(seed)
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, gamma, lam)

    elsewhere = torch.where(mask, values, torch.full_like(values, 1e6))
    changed, _ = compute_gae_advantage_return(rewards, elsewhere, mask, gamma, lam)
    assert torch.equal(changed, advantages)

    order = torch.tensor([2, 0, 3, 1])
    permuted, _ = compute_gae_advantage_return(rewards[order], values[order], mask[order], gamma, lam)
    torch.testing.assert_close(permuted, advantages[order])

    padded = [torch.nn.functional.pad(tensor, (0, 5)) for tensor in (rewards, values, mask)]
    wide, wide_returns = compute_gae_advantage_return(*padded, gamma, lam)
    torch.testing.assert_close(wide[:, :9], advantages)
    torch.testing.assert_close(wide_returns[:, :9], returns)
    assert not wide[:, 9:].any()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_gae_on_a_masked_row_equals_gae_on_its_policy_tokens_alone(seed):
    rewards, values, mask = random_batch(seed)
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8, whiten=False)
    for row in range(len(mask)):
        keep = mask[row]
        alone = torch.ones(1, int(keep.sum()), dtype=torch.bool)
        short, short_returns = compute_gae_advantage_return(
            rewards[row : row + 1, keep], values[row : row + 1, keep], alone, 0.9, 0.8, whiten=False
        )
        torch.testing.assert_close(advantages[row, keep], short[0])
        torch.testing.assert_close(returns[row, keep], short_returns[0])


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


def test_grpo_does_not_read_rewards_at_tool_tokens():
    mask = torch.tensor([[True, False], [True, False]])
    clean, _ = compute_grpo_advantage(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), mask, torch.tensor([0, 0]))
    dirty, _ = compute_grpo_advantage(torch.tensor([[1.0, 9.0], [0.0, -9.0]]), mask, torch.tensor([0, 0]))
    assert torch.equal(clean, dirty)


def test_the_estimator_is_chosen_by_name():
    rewards, values, mask = random_batch(1)
    by_name, _ = compute_advantage("gae", rewards, mask, values=values, gamma=0.9, lam=0.8, whiten=False)
    direct, _ = compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8, whiten=False)
    assert torch.equal(by_name, direct)
    groups = torch.tensor([0, 0, 1, 1])
    by_name, _ = compute_advantage(AdvantageEstimator.GRPO, rewards, mask, groups=groups)
    assert torch.equal(by_name, compute_grpo_advantage(rewards, mask, groups)[0])


@pytest.mark.parametrize(("name", "missing"), [("gae", "values"), ("grpo", "groups")])
def test_an_estimator_without_what_it_needs_says_what_is_missing(name, missing):
    rewards, _, mask = random_batch(1)
    with pytest.raises(ValueError, match=missing):
        compute_advantage(name, rewards, mask)


def test_gae_and_grpo_agree_with_verl():
    verl = pytest.importorskip("verl.trainer.ppo.core_algos")
    rewards, values, mask = random_batch(5, rows=6, length=12)
    theirs, their_returns = verl.compute_gae_advantage_return(rewards, values, mask.float(), 0.97, 0.9)
    ours, our_returns = compute_gae_advantage_return(rewards, values, mask, 0.97, 0.9)
    torch.testing.assert_close(ours, theirs * mask)
    torch.testing.assert_close(our_returns, their_returns * mask)
    groups = torch.tensor([0, 0, 0, 1, 1, 2])
    theirs, _ = verl.compute_grpo_outcome_advantage(rewards, mask.float(), groups.numpy())
    torch.testing.assert_close(compute_grpo_advantage(rewards, mask, groups)[0], theirs)
