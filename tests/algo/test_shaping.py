"""DAPO's overlong punishment, by hand. The teacher's advantage: by hand, and its expectation against the gradient of the reverse
KL divergence."""

import math

import pytest
import torch

from midthought.algo.shaping import overlong_penalty, teacher_advantages


@pytest.mark.parametrize(
    ("num_tokens", "penalty"),
    [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (95, -0.75), (100, -1.0), (101, -1.0), (10**9, -1.0)],
)
def test_the_penalty_falls_along_a_line_within_the_buffer_which_may_be_the_whole_length(num_tokens, penalty):
    assert overlong_penalty(num_tokens, max_tokens=100, buffer_tokens=20) == pytest.approx(penalty)
    assert overlong_penalty(num_tokens, max_tokens=100, buffer_tokens=100) == pytest.approx(-min(num_tokens, 100) / 100)


@pytest.mark.parametrize("buffer_tokens", [0, -1, 101])
def test_a_buffer_that_does_not_fit_is_refused(buffer_tokens):
    with pytest.raises(ValueError, match=f"between 1 and max_tokens=100 tokens, got {buffer_tokens}"):
        overlong_penalty(5, max_tokens=100, buffer_tokens=buffer_tokens)


def test_the_teachers_advantage_is_the_log_ratio_of_the_teacher_at_policy_tokens_and_bounded():
    policy = torch.tensor([0.5, 0.25, 0.5, 1.0]).log()
    teacher = torch.tensor([0.25, 0.5, math.nan, 0.0]).log()
    mask = torch.tensor([True, True, False, True])
    found = teacher_advantages(teacher, policy, mask)
    assert found.tolist() == pytest.approx([-math.log(2), math.log(2), 0.0, -20.0])


def test_the_expectation_of_the_teachers_advantage_over_sampled_tokens_is_the_gradient_of_the_reverse_divergence():
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
