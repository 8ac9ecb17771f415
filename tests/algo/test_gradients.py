"""Gradients of every loss and divergence against finite differences, in float64."""

import pytest
import torch
from token_rows import rows_of
from torch import Tensor
from torch.autograd import gradcheck

from midthought.algo.aggregation import LossAggregation, loss_weights
from midthought.algo.kl import KLKind, kl_divergence
from midthought.algo.losses import compute_policy_loss, compute_value_loss, entropy_from_logprobs, masked_average

ROWS, LENGTH = 4, 6


@pytest.fixture
def figures() -> dict[str, Tensor]:
    """Log-probabilities far enough from the bounds' edges that no finite difference steps over one."""
    generator = torch.Generator().manual_seed(2)
    old = -torch.rand(ROWS, LENGTH, generator=generator, dtype=torch.float64)
    steps = torch.tensor([-0.4, -0.1, 0.05, 0.12, 0.5], dtype=torch.float64)
    drawn = torch.randint(len(steps), (ROWS, LENGTH), generator=generator)
    mask = torch.rand(ROWS, LENGTH, generator=generator) < 0.7
    mask[:, 0] = True
    advantages = torch.randn(ROWS, LENGTH, generator=generator, dtype=torch.float64)
    return {"old": old, "new": old + steps[drawn], "advantages": advantages, "mask": mask}


def checked(function, start: Tensor) -> bool:
    return gradcheck(function, start.clone().requires_grad_())


@pytest.mark.parametrize("average", list(LossAggregation))
@pytest.mark.parametrize("dual_clip", [None, 1.3])
def test_the_clipped_surrogate(figures, average, dual_clip):
    weights, denominator = loss_weights(
        figures["mask"], torch.tensor([0, 0, 1, 2])[:, None].expand(ROWS, LENGTH), average, 10
    )

    def loss(logprobs: Tensor) -> Tensor:
        given = figures["old"], logprobs, figures["advantages"], figures["mask"]
        bounds = {"clip_low": 0.2, "clip_high": 0.28}
        return compute_policy_loss(*given, **bounds, denominator=denominator, dual_clip=dual_clip, weights=weights)[0]

    assert checked(loss, figures["new"])


def test_gspo_where_all_tokens_of_a_row_share_one_advantage(figures):
    """Then the token form that is computed is the sequence's own objective."""
    mask, advantages = figures["mask"], torch.tensor([1.0, -0.7, 0.4, -1.2], dtype=torch.float64)
    weights, denominator = loss_weights(mask, rows_of(mask), "seq-mean-token-mean")

    def loss(logprobs: Tensor) -> Tensor:
        given = figures["old"], logprobs, advantages[:, None].expand(ROWS, LENGTH), mask
        bounds = {"clip_low": 0.05, "clip_high": 0.07}
        return compute_policy_loss(*given, **bounds, denominator=denominator, kind="gspo", weights=weights)[0]

    assert checked(loss, figures["new"])


def test_cispo_within_its_bounds_has_the_gradient_of_the_unclipped_surrogate(figures):
    mask, advantages = figures["mask"], figures["advantages"]

    def surrogate(logprobs: Tensor) -> Tensor:
        return masked_average(-(logprobs - figures["old"]).exp() * advantages, mask)

    def cispo(logprobs: Tensor) -> Tensor:
        return compute_policy_loss(
            figures["old"], logprobs, advantages, mask, clip_low=9.0, clip_high=9.0, kind="cispo"
        )[0]

    assert checked(surrogate, figures["new"])
    start = figures["new"].clone().requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(cispo(start), start)[0], torch.autograd.grad(surrogate(start), start)[0]
    )


def test_cispo_where_the_bounds_hold_every_weight(figures):
    far = figures["old"] + torch.where(figures["new"] > figures["old"], 1.0, -1.0)

    def loss(logprobs: Tensor) -> Tensor:
        given = figures["old"], logprobs, figures["advantages"], figures["mask"]
        return compute_policy_loss(*given, clip_low=0.2, clip_high=0.28, kind="cispo")[0]

    assert checked(loss, far)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss(figures, clip):
    def loss(values: Tensor) -> Tensor:
        given = {"old_values": figures["old"], "returns": figures["advantages"], "mask": figures["mask"]}
        return compute_value_loss(new_values=values, **given, cliprange_value=clip)[0]

    assert checked(loss, figures["new"])


@pytest.mark.parametrize("kind", list(KLKind))
def test_the_divergences(figures, kind):
    def mean(logprobs: Tensor) -> Tensor:
        return masked_average(kl_divergence(logprobs, figures["old"], kind), figures["mask"])

    assert checked(mean, figures["new"])


def test_the_entropy(figures):
    assert checked(lambda logits: entropy_from_logprobs(torch.log_softmax(logits, dim=-1)), figures["advantages"])
