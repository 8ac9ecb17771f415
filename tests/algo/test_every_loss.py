"""Every registered policy loss: one example worked by hand, and its gradient against finite differences in float64. The first
test fails if a new loss has no entry. Estimators: test_worked_example.py; whole steps: tests/learning/test_every_method.py."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_choices import shipped
from torch import Tensor
from torch.autograd import gradcheck

from midthought.algo.losses import compute_policy_loss
from midthought.algo.policy_losses import POLICY_LOSSES

WORKED: dict[str, tuple[float, list[float], dict[str, Any]]] = {
    "ppo": (-1.28 - 0.75, [0.0, -0.75], {}),
    "gspo": (-2 * 0.987421, [-0.987421, -0.987421], {}),
    "cispo": (1.28 * 0.430783 + 0.8 * 1.203973, [-1.28, -0.8], {}),
    "sapo": (-4 * (0.574443 + 0.437823), [-4 * 0.244458 * 1.3, -4 * 0.246134 * 0.75], {}),
    "gmpo": (-2 * 0.987421, [-0.987421, -0.987421], {}),
    "dppo_tv": (0.75 * 1.203973, [0.0, -0.75], {"options": {"max_divergence": 0.14}}),
    "dppo_kl": (0.75 * 1.203973, [0.0, -0.75], {"options": {"max_divergence": 0.047}}),
    "nll": (0.430783 + 1.203973, [-1.0, -1.0], {}),
}
"""The sum of the losses, and the gradient at the log-probabilities, of a row of two tokens with the advantage 1: from the
probability 0.5 to 0.65 and from 0.4 to 0.3, so the ratios are 1.3 and 0.75; bounds 0.2 and 0.28. Values that occur:
√(1.3 · 0.75) = 0.987421, -ln 0.65 = 0.430783, -ln 0.3 = 1.203973, -ln 0.75 = 0.287682, σ(0.3) = 0.574443 and
σ(-0.25) = 0.437823 with σ (1 - σ) = 0.244458 and 0.246134. The first token has moved by 0.15 and by
½ ln(0.5 / 0.65) + ½ ln(0.5 / 0.35) = 0.047155 nats, in the direction of its advantage."""


def weighted_likelihood(weight: Callable[[Tensor], Tensor]) -> Callable[..., Callable[[Tensor], Tensor]]:
    """The objective `-w A log π` with `w = weight(ratio)` held at its value."""

    def held(old: Tensor, new: Tensor, advantages: Tensor) -> Callable[[Tensor], Tensor]:
        weights = weight((new - old).exp())
        return lambda logprobs: -weights * advantages * logprobs

    return held


def gspo_token_form(old: Tensor, new: Tensor, advantages: Tensor) -> Callable[[Tensor], Tensor]:
    """`sg[s] π / sg[π]` in place of the ratio."""
    ratios = (((new - old) * MASK).sum(dim=1, keepdim=True) / MASK.sum(dim=1, keepdim=True)).exp()

    def objective(logprobs: Tensor) -> Tensor:
        moved = ratios * (logprobs - new).exp()
        return torch.maximum(-moved * advantages, -moved.clamp(1 - 0.2, 1 + 0.28) * advantages)

    return objective


HELD: dict[str, Callable[..., Callable[[Tensor], Tensor]] | None] = {
    **dict.fromkeys(("ppo", "sapo", "gmpo", "nll")),
    "gspo": gspo_token_form,
    "cispo": weighted_likelihood(lambda ratios: ratios.clamp(0.8, 1.28)),
    "dppo_tv": weighted_likelihood(lambda ratios: ratios * KEPT),
    "dppo_kl": weighted_likelihood(lambda ratios: ratios * KEPT),
}
"""The objective of a loss with its stop-gradients, masks and selections held; None: the loss itself has none, or its selection is
an argument."""
OLD = torch.tensor([[0.5, 0.4, 0.3, 0.2], [0.6, 0.5, 0.2, 0.7]], dtype=torch.float64).log()
NEW = torch.tensor([[0.8, 0.3, 0.33, 0.1], [0.5, 0.62, 0.21, 0.65]], dtype=torch.float64).log()
ADVANTAGES = torch.tensor([[1.5], [-0.7]], dtype=torch.float64).expand(2, 4)
KEPT = torch.tensor([[0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
"""DPPO drops the token that has moved from 0.5 to 0.8 in the direction of its advantage, by 0.3 and 0.22 nats; the largest
other move in that direction, from 0.6 to 0.5, is 0.1 and 0.02 nats. No ratio is near a bound: 1.6, 0.75, 1.1 and 0.83, 1.24,
1.05, 0.93; the means of the rows are 1.10 and 1.00."""
MASK = torch.tensor([[True, True, True, False], [True, True, True, True]])


def test_every_loss_has_an_entry():
    assert set(WORKED) == set(HELD) == shipped(POLICY_LOSSES)


@pytest.mark.parametrize("kind", WORKED)
def test_the_example_worked_by_hand(kind):
    expected, gradient, given = WORKED[kind]
    old, new = (torch.tensor([values], dtype=torch.float64).log() for values in ([0.5, 0.4], [0.65, 0.3]))
    new.requires_grad_()
    mask = torch.ones(1, 2, dtype=torch.bool)
    bounds = {"clip_low": 0.2, "clip_high": 0.28, "denominator": 1}
    loss, _ = compute_policy_loss(old, new, torch.ones_like(old), mask, kind=kind, **bounds, **given)
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=3e-6)
    assert new.grad[0].tolist() == pytest.approx(gradient, abs=3e-6)


@pytest.mark.parametrize("kind", HELD)
def test_the_gradient_is_that_of_finite_differences_with_what_is_held(kind):
    weights = torch.tensor([[0.5], [2.0]], dtype=torch.float64).expand(2, 4)

    def loss(logprobs: Tensor) -> Tensor:
        given = {"clip_low": 0.2, "clip_high": 0.28, "denominator": 3, "weights": weights}
        return compute_policy_loss(OLD, logprobs, ADVANTAGES, MASK, kind=kind, **given)[0]

    def objective(logprobs: Tensor) -> Tensor:
        return (held(logprobs) * weights * MASK).sum() / 3

    make = HELD[kind]
    held = None if make is None else make(OLD, NEW, ADVANTAGES)
    assert gradcheck(loss if held is None else objective, NEW.clone().requires_grad_())
    if held is not None:
        starts = [NEW.clone().requires_grad_() for _ in range(2)]
        found, expected = (f(start) for f, start in zip((loss, objective), starts, strict=True))
        found.backward()
        expected.backward()
        torch.testing.assert_close(starts[0].grad, starts[1].grad)
        assert starts[0].grad.any()
