"""Divergences over the vocabulary: numbers worked by hand, torch's `kl_div` as an oracle, finite differences in float64."""

import math

import pytest
import torch
from torch.nn.functional import kl_div

from midthought.algo.divergence import generalized_jsd, importance_weights, with_rest

POLICY, TEACHER = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
ALPHAS = [0.0, 0.3, 0.5, 1.0]


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.0, 0.25 * math.log(2)),  # 0.25 log(1/2) + 0 + 0.5 log 2
        (1.0, 0.25 * math.log(2)),  # 0.5 log 2 + 0 + 0.25 log(1/2)
        (0.5, 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3)),  # m = 3/8, 1/4, 3/8; both halves are equal
        # m = 0.4375, 0.25, 0.3125
        (
            0.25,
            0.75 * (0.5 * math.log(8 / 7) + 0.25 * math.log(0.8))
            + 0.25 * (0.25 * math.log(4 / 7) + 0.5 * math.log(1.6)),
        ),
    ],
)
def test_the_divergence_is_as_worked_by_hand(alpha, expected):
    assert float(generalized_jsd(POLICY.log(), TEACHER.log(), alpha)) == pytest.approx(expected, abs=1e-7)


def test_the_rest_of_the_vocabulary_is_one_more_token():
    """(1/2, 1/4) and (1/4, 1/4): the rest has 1/4 and 1/2, so KL = 0.5 log 2 + 0 + 0.25 log(1/2)."""
    top, teachers = (with_rest(each[:2].log()) for each in (POLICY, TEACHER))
    assert top.exp().tolist() == pytest.approx([0.5, 0.25, 0.25])
    assert float(generalized_jsd(top, teachers, 1.0)) == pytest.approx(0.25 * math.log(2), abs=1e-7)
    assert with_rest(torch.tensor([0.5, 0.5]).log())[2].exp() == pytest.approx(1e-7, rel=0.2), "finite without a rest"


def distributions() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits, others = torch.randn(2, 4, 9, generator=generator, dtype=torch.float64)
    return logits, others.log_softmax(-1)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_it_is_what_torchs_kl_div_gives(alpha):
    """As TRL's GKDTrainer and the authors of SDPO compute it: `torch.lerp` of two calls on the mixture."""
    logits, teacher = distributions()
    policy = logits.log_softmax(-1)
    if alpha in (0.0, 1.0):
        expected = kl_div(*((policy, teacher) if alpha == 0 else (teacher, policy)), reduction="none", log_target=True)
    else:
        mixture = ((1 - alpha) * policy.exp() + alpha * teacher.exp()).log()
        of_policy, of_teacher = (kl_div(mixture, each, reduction="none", log_target=True) for each in (policy, teacher))
        expected = torch.lerp(of_policy, of_teacher, alpha)
    torch.testing.assert_close(generalized_jsd(policy, teacher, alpha), expected.sum(-1))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("num_top", [None, 4])
def test_its_gradient_at_the_policys_logits_is_that_of_finite_differences(alpha, num_top):
    """The choice of the top tokens and the teacher are held."""
    logits, teacher = distributions()
    top = None if num_top is None else logits.topk(num_top).indices

    def divergence(values: torch.Tensor) -> torch.Tensor:
        policy, others = values.log_softmax(-1), teacher
        if top is not None:
            policy, others = with_rest(policy.gather(-1, top)), with_rest(others.gather(-1, top))
        return generalized_jsd(policy, others, alpha)

    assert torch.autograd.gradcheck(divergence, logits.clone().requires_grad_())


@pytest.mark.parametrize("alpha", ALPHAS)
def test_it_is_never_negative_and_zero_for_equal_distributions_also_with_impossible_tokens(alpha):
    logits, teacher = distributions()
    logits[:, 3] = -torch.inf
    policy = logits.log_softmax(-1).requires_grad_()
    assert (generalized_jsd(policy, teacher, alpha) > 0).all()
    found = generalized_jsd(policy, policy.detach(), alpha)
    found.sum().backward()
    assert found.abs().max() < 1e-12 and policy.grad.isfinite().all()


def test_the_importance_weight_is_the_ratio_up_to_two_without_a_gradient():
    new, old = torch.tensor([0.6, 0.9]).log().requires_grad_(), torch.tensor([0.5, 0.3]).log()
    weights = importance_weights(new, old)
    assert weights.tolist() == pytest.approx([1.2, 2.0]) and not weights.requires_grad


def test_an_alpha_outside_its_range_is_an_error_with_the_valid_values():
    with pytest.raises(ValueError, match=r"alpha=1\.5: give 0 \(forward KL\), 1 \(reverse KL\) or a number between"):
        generalized_jsd(POLICY.log(), TEACHER.log(), 1.5)
