"""Losses with their own bounds: numbers worked by hand, options."""

import math

import pytest
import torch

from midthought.algo.losses import compute_policy_loss
from midthought.config import create_default_config
from midthought.errors import SettingsError


def loss_of(kind: str, old: list[float], new: list[float], advantage: float, **options: float) -> tuple[float, dict]:
    """Of one row of tokens with these probabilities."""
    before, now = (torch.tensor([values], dtype=torch.float64).log() for values in (old, new))
    mask = torch.ones_like(now, dtype=torch.bool)
    loss, metrics = compute_policy_loss(before, now, torch.full_like(now, advantage), mask, kind=kind, options=options)
    return float(loss), {name: float(value) for name, value in metrics.items()}


def gradient_of(kind: str, old: list[float], new: list[float], advantage: float) -> list[float]:
    """At the log-probabilities."""
    before, now = (torch.tensor([values], dtype=torch.float64).log() for values in (old, new))
    now.requires_grad_()
    mask = torch.ones_like(now, dtype=torch.bool)
    compute_policy_loss(before, now, torch.full_like(now, advantage), mask, kind=kind, denominator=1)[0].backward()
    return now.grad[0].tolist()


class TestSAPO:
    def test_its_temperatures_are_as_exact_as_its_log_probabilities(self):
        expected = 4 / 1.05 / (1 + math.exp(-1.05 * (0.8 - 1)))
        assert loss_of("sapo", [0.5], [0.4], -1.0)[0] == pytest.approx(expected, rel=1e-14)

    def test_far_away_the_gradient_fades_and_does_so_faster_for_bad_tokens(self):
        """Ratio 3: σ(2) = 0.8808, 4 σ (1 - σ) = 0.41997, times the ratio and A."""
        assert loss_of("sapo", [0.1], [0.3], 1.0)[1]["gate_mean"] == pytest.approx(0.41997, abs=1e-5)
        assert gradient_of("sapo", [0.1], [0.3], 1.0) == pytest.approx([-3 * 0.41997], abs=1e-4)
        assert loss_of("sapo", [0.1], [0.3], -1.0)[1]["gate_mean"] < 0.41997


class TestGMPO:
    def test_only_ratios_that_moved_with_the_advantage_are_limited(self):
        """Ratios 4 and 1/4 against the range (e^-0.4, e^0.4)."""
        good = loss_of("gmpo", [0.2, 0.8], [0.8, 0.2], 1.0)
        assert good[0] == pytest.approx(-math.sqrt(math.exp(0.4) / 4))
        bad = loss_of("gmpo", [0.2, 0.8], [0.8, 0.2], -1.0)
        assert bad[0] == pytest.approx(math.sqrt(4 * math.exp(-0.4)))
        assert good[1]["clip_fraction"] == bad[1]["clip_fraction"] == 0.5


class TestDPPO:
    @pytest.mark.parametrize("kind", ["dppo_tv", "dppo_kl"])
    def test_a_rare_token_may_grow_manyfold_and_a_frequent_one_only_a_little(self, kind):
        """1 % -> 5 %: ratio 5, which PPO clips; 50 % -> 70 %: ratio 1.4, but a fifth of all probability has moved."""
        rare, frequent = loss_of(kind, [0.01], [0.05], 1.0), loss_of(kind, [0.5], [0.7], 1.0)
        assert rare[1]["clip_fraction"] == 0.0 and rare[0] == pytest.approx(-5 * math.log(0.05))
        assert frequent[1]["clip_fraction"] == 1.0 and frequent[0] == 0.0

    def test_the_binary_divergence_by_hand(self):
        """0.5 -> 0.7: ½ ln(½ / 0.7) + ½ ln(½ / 0.3) = 0.0872 nats."""
        assert loss_of("dppo_kl", [0.5], [0.7], 1.0, max_divergence=0.087)[1]["clip_fraction"] == 1.0
        assert loss_of("dppo_kl", [0.5], [0.7], 1.0, max_divergence=0.088)[1]["clip_fraction"] == 0.0

    @pytest.mark.parametrize("kind", ["dppo_tv", "dppo_kl"])
    def test_a_token_that_moved_against_its_advantage_keeps_its_gradient(self, kind):
        assert gradient_of(kind, [0.5], [0.9], -1.0) == pytest.approx([1.8])
        assert gradient_of(kind, [0.9], [0.5], 1.0) == pytest.approx([-0.5 / 0.9])

    def test_the_weight_has_a_limit(self):
        assert gradient_of("dppo_tv", [0.001], [0.1], 1.0) == pytest.approx([-20.0])

    def test_its_ratio_is_to_the_sampled_probability_and_not_to_the_recomputed_one(self):
        sampled, recomputed, now = (torch.tensor([[value]]).log() for value in (0.2, 0.4, 0.3))
        mask = torch.ones(1, 1, dtype=torch.bool)
        loss, metrics = compute_policy_loss(
            recomputed, now, torch.ones(1, 1), mask, kind="dppo_tv", sampled_logprobs=sampled
        )
        assert float(loss) == pytest.approx(-1.5 * math.log(0.3))
        assert float(metrics["ratio_mean"]) == pytest.approx(1.5)


# -- settings --------------------------------------------------------------------------------------------------------


def training(**changes):
    return create_default_config(training=changes).training


def test_a_loss_on_sampled_probabilities_excludes_the_correction_also_of_older_tokens():
    with pytest.raises(
        SettingsError,
        match=r"already uses the sampled log-probabilities or has no importance weights; set rollout_correction to 'none'",
    ):
        training(policy_loss="dppo_tv", rollout_correction="truncated")
    config = create_default_config(training={"policy_loss": "dppo_tv", "max_staleness": 2})
    assert config.frozen().training.rollout_correction == "none"
