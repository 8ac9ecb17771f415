"""KL estimators, the penalty in the rewards, its controller: numbers worked by hand."""

import math

import pytest
import torch
from precision import tolerance

from midthought.algo.shaping import KLController, KLKind, apply_kl_penalty, kl_divergence


@pytest.mark.parametrize(
    ("kind", "verls_name", "expected", "gradient"),
    [
        ("k1", "kl", -0.5, 1.0),
        ("abs", "abs", 0.5, -1.0),
        ("k2", "mse", 0.125, -0.5),
        ("k3", "low_var_kl", math.exp(0.5) - 1.5, 1 - math.exp(0.5)),
    ],
)
def test_each_estimate_at_a_log_ratio_of_minus_a_half_is_as_worked_by_hand(kind, verls_name, expected, gradient):
    logprobs = torch.tensor([-1.5], requires_grad=True)
    estimate = kl_divergence(logprobs, torch.tensor([-1.0]), kind)
    estimate.backward()
    found = (estimate.item(), logprobs.grad.item())
    assert found == pytest.approx((expected, gradient), abs=tolerance(torch.float32, magnitude=2.0))
    assert KLKind(verls_name) is KLKind(kind)


def test_k3_stays_finite_at_any_ratio():
    assert torch.isfinite(kl_divergence(torch.tensor([-500.0, 0.0]), torch.tensor([0.0, -500.0]), "k3")).all()


def test_the_penalty_is_taken_off_the_rewards_of_policy_tokens_only():
    rewards = torch.tensor([[0.0, 0.5, 1.0]])
    logprobs, reference = torch.tensor([[-1.0, float("nan"), -1.0]]), torch.tensor([[-3.0, -1.0, -2.0]])
    mask = torch.tensor([[True, False, True]])
    penalised, mean = apply_kl_penalty(rewards, logprobs, reference, mask, kl_coef=0.1)
    torch.testing.assert_close(penalised, torch.tensor([[-0.2, 0.5, 0.9]]))
    assert float(mean) == pytest.approx(1.5)
    penalised, mean = apply_kl_penalty(rewards, logprobs, reference, mask, 0.1, "k2")
    torch.testing.assert_close(penalised, torch.tensor([[-0.2, 0.5, 0.95]]))
    assert float(mean) == pytest.approx(1.25)


def test_the_adaptive_coefficient_follows_the_target_by_at_most_a_fifth_per_horizon():
    controller = KLController(0.1, target_kl=0.2, horizon=100)
    assert controller.update(0.22, 50) == pytest.approx(0.1 * (1 + 0.1 * 0.5))
    controller = KLController(0.1, target_kl=0.2, horizon=100)
    assert controller.update(5.0, 100) == pytest.approx(0.12)
    assert controller.update(0.0, 100) == pytest.approx(0.12 * 0.8)


def test_the_coefficient_survives_saving():
    controller = KLController(0.1, target_kl=0.2, horizon=100)
    controller.update(5.0, 100)
    other = KLController(0.1, target_kl=0.2, horizon=100)
    other.load_state_dict(controller.state_dict())
    assert other.coef == controller.coef


@pytest.mark.parametrize("wrong", [{"target_kl": 0.0}, {"target_kl": 0.1, "horizon": 0}])
def test_a_target_or_horizon_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="above 0"):
        KLController(0.1, **wrong)
