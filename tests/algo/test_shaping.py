"""By hand: importance weights between recomputed and sampled log-probabilities, DAPO's overlong punishment, the advantage of a
teacher, whose expectation is compared with the gradient of the reverse KL divergence."""

import math

import pytest
import torch
from token_rows import rows_of

from midthought.algo.shaping import overlong_penalty, rollout_weights, teacher_advantages


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


RATIOS = torch.tensor([[0.25, 1.0, 3.0, math.nan], [2.0, 0.5, math.nan, math.nan]])
MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])


def weigh(kind: str, **bounds) -> tuple[list[list[float]], dict[str, float]]:
    weights, figures = rollout_weights(RATIOS.log(), torch.zeros(2, 4), MASK, kind, episodes=rows_of(MASK), **bounds)
    return [[round(weight, 5) for weight in row] for row in weights.tolist()], figures


def test_truncation_cuts_the_weight_at_the_maximum():
    weights, figures = weigh("truncated", max_weight=1.5)
    assert weights == [[0.25, 1.0, 1.5, 0.0], [1.5, 0.5, 0.0, 0.0]]
    assert figures["rollout_truncated_fraction"] == pytest.approx(2 / 5)
    assert figures["rollout_weight_mean"] == pytest.approx(4.75 / 5)


def test_masking_drops_what_is_outside_the_bounds_and_keeps_the_weight_of_the_rest():
    weights, figures = weigh("masked", max_weight=2.5, min_weight=0.3)
    assert weights == [[0.0, 1.0, 0.0, 0.0], [2.0, 0.5, 0.0, 0.0]]
    assert figures["rollout_masked_fraction"] == pytest.approx(2 / 5)


def test_at_the_level_of_the_sequence_every_token_has_the_product_over_the_episode():
    # 0.25 · 1 · 3 = 0.75; 2 · 0.5 = 1
    assert weigh("sequence_truncated")[0] == [[0.75, 0.75, 0.75, 0.0], [1.0, 1.0, 0.0, 0.0]]
    assert weigh("sequence_masked", max_weight=0.9)[0] == [[0.75, 0.75, 0.75, 0.0], [0.0, 0.0, 0.0, 0.0]]


def test_weights_stay_finite_and_carry_no_gradient():
    recomputed = torch.tensor([[0.0, 0.0]], requires_grad=True)
    sampled, everywhere = torch.tensor([[-900.0, -900.0]]), torch.ones(1, 2, dtype=torch.bool)
    options = {"episodes": rows_of(everywhere), "max_weight": math.inf}
    weights, _ = rollout_weights(recomputed, sampled, everywhere, "sequence_truncated", **options)
    assert torch.isfinite(weights).all() and not weights.requires_grad
