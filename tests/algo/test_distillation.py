"""The teacher's advantage: numbers worked by hand, and its expectation against the gradient of the reverse KL divergence."""

import math

import pytest
import torch

from midthought.algo.distillation import teacher_advantages


def test_it_is_the_log_ratio_of_the_teacher_at_policy_tokens_and_bounded():
    policy = torch.tensor([0.5, 0.25, 0.5, 1.0]).log()
    teacher = torch.tensor([0.25, 0.5, math.nan, 0.0]).log()
    mask = torch.tensor([True, True, False, True])
    found = teacher_advantages(teacher, policy, mask)
    assert found.tolist() == pytest.approx([-math.log(2), math.log(2), 0.0, -20.0])


def test_its_expectation_over_sampled_tokens_is_the_gradient_of_the_reverse_divergence():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, generator=generator, dtype=torch.float64)
    teacher = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(-1)

    def divergence(values: torch.Tensor) -> float:
        policy = values.log_softmax(-1)
        return float((policy.exp() * (policy - teacher)).sum())

    steps = 1e-6 * torch.eye(7, dtype=torch.float64)
    expected = [-(divergence(logits + step) - divergence(logits - step)) / 2e-6 for step in steps]
    start = logits.clone().requires_grad_()
    policy = start.log_softmax(-1)
    with torch.no_grad():
        weights = policy.exp() * teacher_advantages(teacher, policy, torch.ones(7, dtype=torch.bool))
    (weights * policy).sum().backward()
    assert start.grad.tolist() == pytest.approx(expected, abs=1e-8)
