"""Gradients of the value loss, divergences and entropy against finite differences, in float64. Every policy loss:
test_every_loss.py."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from midthought.algo.kl import KLKind, kl_divergence
from midthought.algo.losses import compute_value_loss, entropy_from_logprobs, masked_average

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


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss(figures, clip):
    def loss(values: Tensor) -> Tensor:
        given = {"old_values": figures["old"], "returns": figures["advantages"], "response_mask": figures["mask"]}
        return compute_value_loss(vpreds=values, **given, cliprange_value=clip)[0]

    assert checked(loss, figures["new"])


@pytest.mark.parametrize("kind", list(KLKind))
def test_the_divergences(figures, kind):
    def mean(logprobs: Tensor) -> Tensor:
        return masked_average(kl_divergence(logprobs, figures["old"], kind), figures["mask"])

    assert checked(mean, figures["new"])


def test_the_entropy(figures):
    assert checked(lambda logits: entropy_from_logprobs(torch.log_softmax(logits, dim=-1)), figures["advantages"])
