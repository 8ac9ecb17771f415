"""Losses: numbers worked by hand, options. Every loss with its gradient: `test_every_loss.py`."""

import math
from typing import get_args

import pytest
import torch

from midthought.algo.losses import (
    compute_policy_loss,
    compute_value_loss,
    entropy_from_logprobs,
    loss_weights,
    masked_average,
)
from midthought.config import TrainingConfig, create_default_config
from midthought.errors import SettingsError

LOG2 = math.log(2.0)


def policy_loss(ratio: float, advantage: float, **bounds: float) -> tuple[float, float]:
    new, everywhere = torch.tensor([[ratio]]).log(), torch.ones(1, 1, dtype=torch.bool)
    loss, metrics = compute_policy_loss(torch.zeros(1, 1), new, torch.tensor([[advantage]]), everywhere, **bounds)
    return float(loss), float(metrics["clip_fraction"])


HIGHER, LOWER = {"clip_low": 0.2, "clip_high": 0.28}, {"clip_low": 0.3, "clip_high": 0.2}


@pytest.mark.parametrize(
    ("ratio", "advantage", "bounds", "loss", "clipped"),
    [
        (1.0, 2.0, {}, -2.0, 0.0),
        (1.5, 2.0, {}, -2.4, 1.0),  # cut at 1.2
        (0.5, 2.0, {}, -1.0, 0.0),  # a good token made less likely: never cut
        (1.5, -2.0, {}, 3.0, 0.0),  # a bad token made more likely: never cut
        (0.5, -2.0, {}, 1.6, 1.0),  # cut at 0.8
        (1.25, 1.0, HIGHER, -1.25, 0.0),
        (1.5, 1.0, HIGHER, -1.28, 1.0),
        (0.75, -1.0, LOWER, 0.75, 0.0),
        (10.0, -1.0, {}, 10.0, 0.0),
        (10.0, -2.0, {"dual_clip": 3.0}, 6.0, 0.0),  # bounds the loss of bad tokens only
        (10.0, 0.5, {"dual_clip": 1.5}, -0.6, 1.0),
    ],
)
def test_the_surrogate_cuts_only_what_went_far_enough_already(ratio, advantage, bounds, loss, clipped):
    assert policy_loss(ratio, advantage, **bounds) == pytest.approx((loss, clipped))


def test_policy_metrics_are_as_worked_by_hand():
    # ratios 2 and 1: mean 1.5; k3 = r - 1 - log r: 1 - log 2 and 0
    mask = torch.tensor([[True, True, False]])
    logprobs = torch.tensor([[LOG2, 0.0, math.nan]])
    _, metrics = compute_policy_loss(torch.zeros(1, 3), logprobs, torch.ones(1, 3), mask)
    found = [float(metrics[name]) for name in ("ratio_mean", "approx_kl", "clip_fraction")]
    assert found == pytest.approx([1.5, (1 - LOG2) / 2, 0.5])


def test_gspo_clips_the_geometric_mean_of_the_rows_ratios():
    # row 0: ratios 4 and 1/4 (their token between belongs to a tool): s = 1; row 1: ratios 2 and 8: s = 4, cut at 1.2;
    # row 2: one token, s = 2
    logprobs = torch.tensor([[2 * LOG2, 9.0, -2 * LOG2], [LOG2, 3 * LOG2, -5.0], [7.0, LOG2, 1.0]])
    mask = torch.tensor([[True, False, True], [True, True, False], [False, True, False]])
    loss, metrics = compute_policy_loss(torch.zeros(3, 3), logprobs, torch.ones(3, 3), mask, kind="gspo")
    assert float(loss) == pytest.approx((-1 - 1 - 1.2 - 1.2 - 1.2) / 5)
    assert float(metrics["clip_fraction"]) == pytest.approx(0.6)
    assert float(metrics["ratio_mean"]) == pytest.approx((1 + 1 + 4 + 4 + 2) / 5)


@pytest.mark.parametrize("kind", ["gspo", "gmpo"])
def test_a_ratio_per_row_needs_rows(kind):
    flat = torch.zeros(3)
    with pytest.raises(ValueError, match=r"one ratio per row.*not \[3\]"):
        compute_policy_loss(flat, flat, flat, flat == 0, kind=kind)


def test_weights_multiply_the_loss_and_not_the_metrics():
    mask, advantages = torch.tensor([[True, True, False]]), torch.ones(1, 3)
    weights = torch.tensor([[0.5, 0.0, math.nan]])
    loss, metrics = compute_policy_loss(torch.zeros(1, 3), torch.zeros(1, 3), advantages, mask, weights=weights)
    assert float(loss) == pytest.approx(-0.25)
    assert float(metrics["ratio_mean"]) == pytest.approx(1.0)


def test_one_broken_ratio_does_not_make_the_loss_infinite():
    loss, _ = compute_policy_loss(
        torch.tensor([-500.0]), torch.tensor([0.0]), torch.tensor([-1.0]), torch.tensor([True])
    )
    assert torch.isfinite(loss)


@pytest.mark.parametrize(
    ("value", "target", "cliprange", "loss", "clipped", "gradient"),
    [
        (0.1, 1.0, 0.2, 0.5 * 0.81, 0.0, -0.9),  # moved by 0.1, inside the range
        (0.5, 1.0, 0.2, 0.5 * 0.64, 1.0, 0.0),  # moved by 0.5: judged as if by 0.2, the larger error
        (-0.5, -1.0, 0.2, 0.5 * 0.64, 1.0, 0.0),  # the same downward
        (-0.5, 1.0, 0.2, 0.5 * 2.25, 0.0, -1.5),  # moved away: the unclipped error is the larger
        (0.5, 1.0, None, 0.125, 0.0, -0.5),
    ],
)
def test_the_value_loss_is_half_the_larger_of_plain_and_clipped_squared_error(
    value, target, cliprange, loss, clipped, gradient
):
    values, old, returns = (torch.tensor([figure - 1.0]) for figure in (value, 0.0, target))
    given = {"old_values": old, "returns": returns, "response_mask": torch.tensor([True])}
    given |= {} if cliprange == 0.2 else {"cliprange_value": cliprange}  # 0.2 is the default
    figure, metrics = compute_value_loss(vpreds=values.requires_grad_(), **given)
    assert figure.item() == pytest.approx(loss)
    assert float(metrics["value_clip_fraction"]) == clipped
    assert torch.autograd.grad(figure, values)[0].item() == pytest.approx(gradient)


def test_entropy_is_that_of_the_distribution_and_an_impossible_token_adds_nothing():
    logprobs = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25] * 4]).log()
    torch.testing.assert_close(entropy_from_logprobs(logprobs), torch.tensor([1.5 * LOG2, 2 * LOG2]))


def loss_of(kind, old, new, advantage, **options) -> tuple[float, dict, list[float]]:
    """Of one row of tokens with these probabilities: the loss, its metrics, the gradient of its sum at the log-probabilities."""
    before, now = (torch.tensor([values], dtype=torch.float64).log() for values in (old, new))
    now.requires_grad_()
    mask = torch.ones_like(now, dtype=torch.bool)
    loss, metrics = compute_policy_loss(before, now, torch.full_like(now, advantage), mask, kind=kind, options=options)
    loss.backward()
    loss = loss.detach()
    gradient = (now.grad[0] * len(old)).tolist()
    return float(loss), {name: float(value) for name, value in metrics.items()}, gradient


def test_sapos_gradient_fades_far_away_and_does_so_faster_for_bad_tokens():
    """Ratio 3: σ(2) = 0.8808, 4 σ (1 - σ) = 0.41997, times the ratio and A."""
    _, good, gradient = loss_of("sapo", [0.1], [0.3], 1.0)
    assert good["gate_mean"] == pytest.approx(0.41997, abs=1e-5)
    assert gradient == pytest.approx([-3 * 0.41997], abs=1e-4)
    assert loss_of("sapo", [0.1], [0.3], -1.0)[1]["gate_mean"] < 0.41997
    expected = 4 / 1.05 / (1 + math.exp(-1.05 * (0.8 - 1)))  # the temperatures are as exact as the log-probabilities
    assert loss_of("sapo", [0.5], [0.4], -1.0)[0] == pytest.approx(expected, rel=1e-14)


def test_gmpo_limits_only_ratios_that_moved_with_the_advantage():
    """Ratios 4 and 1/4 against the range (e^-0.4, e^0.4)."""
    good, bad = (loss_of("gmpo", [0.2, 0.8], [0.8, 0.2], advantage) for advantage in (1.0, -1.0))
    assert (good[0], bad[0]) == pytest.approx((-math.sqrt(math.exp(0.4) / 4), math.sqrt(4 * math.exp(-0.4))))
    assert good[1]["clip_fraction"] == bad[1]["clip_fraction"] == 0.5


@pytest.mark.parametrize("kind", ["dppo_tv", "dppo_kl"])
def test_in_dppo_a_rare_token_may_grow_manyfold_and_a_frequent_one_only_a_little(kind):
    """1 % -> 5 %: ratio 5, which PPO clips; 50 % -> 70 %: ratio 1.4, but a fifth of all probability has moved."""
    rare, frequent = loss_of(kind, [0.01], [0.05], 1.0), loss_of(kind, [0.5], [0.7], 1.0)
    assert rare[1]["clip_fraction"] == 0.0 and rare[0] == pytest.approx(-5 * math.log(0.05))
    assert frequent[1]["clip_fraction"] == 1.0 and frequent[0] == 0.0
    for old, new, advantage, gradient in ((0.5, 0.9, -1.0, 1.8), (0.9, 0.5, 1.0, -0.5 / 0.9)):  # against its advantage
        assert loss_of(kind, [old], [new], advantage)[2] == pytest.approx([gradient])


def test_the_binary_divergence_of_dppo_and_the_limit_of_its_weight_by_hand():
    """0.5 -> 0.7: ½ ln(½ / 0.7) + ½ ln(½ / 0.3) = 0.0872 nats."""
    for limit, clipped in ((0.087, 1.0), (0.088, 0.0)):
        assert loss_of("dppo_kl", [0.5], [0.7], 1.0, max_divergence=limit)[1]["clip_fraction"] == clipped
    assert loss_of("dppo_tv", [0.001], [0.1], 1.0)[2] == pytest.approx([-20.0])


def test_dppos_ratio_is_to_the_sampled_probability_and_not_to_the_recomputed_one():
    sampled, recomputed, now, one = (torch.tensor([[value]]) for value in (0.2, 0.4, 0.3, 1.0))
    loss, metrics = compute_policy_loss(
        recomputed.log(), now.log(), one, one == 1, kind="dppo_tv", sampled_logprobs=sampled.log()
    )
    assert float(loss) == pytest.approx(-1.5 * math.log(0.3))
    assert float(metrics["ratio_mean"]) == pytest.approx(1.5)


def test_a_loss_on_sampled_probabilities_excludes_the_correction_also_of_older_tokens():
    words = "already uses the sampled log-probabilities or has no importance weights; set rollout_correction to 'none'"
    with pytest.raises(SettingsError, match=words):
        create_default_config(training={"policy_loss": "dppo_tv", "rollout_correction": "truncated"})
    config = create_default_config(training={"policy_loss": "dppo_tv", "max_staleness": 2})
    assert config.frozen().training.rollout_correction == "none"


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
    assert kind != "token-mean" or float(masked_average(LOSSES, MASK)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", get_args(TrainingConfig.model_fields["loss_agg"].annotation))
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
