"""What must not matter, for every estimator and every loss: masked values, padding and its side, order, micro-batches."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_rows import rows_of
from torch import Tensor
from torch.nn.functional import pad

from midthought.algo.advantages import AdvantageEstimator, compute_advantage
from midthought.algo.losses import compute_policy_loss, compute_value_loss, loss_weights, masked_average
from midthought.algo.shaping import rollout_weights
from midthought.config import TrainingConfig

ROWS, LENGTH = 6, 8
LOSSES = [*sorted(TrainingConfig.policy_losses), "value"]
few, several = settings(max_examples=12, deadline=None), settings(max_examples=24, deadline=None)
averages = st.sampled_from(get_args(TrainingConfig.model_fields["loss_agg"].annotation))
seeds = st.integers(0, 10_000)
rubbish = st.sampled_from([math.nan, math.inf, -math.inf, 1e30])


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)


def drawn(seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """A mask in which every row has a policy token, and figures [E, T]."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(ROWS, LENGTH, generator=generator) < 0.6
    mask[torch.arange(ROWS), torch.randint(LENGTH, (ROWS,), generator=generator)] = True
    names = ("rewards", "values", "old", "new", "advantages", "returns")
    figures = {name: torch.randn(ROWS, LENGTH, generator=generator, dtype=torch.float64) for name in names}
    figures["calls"] = torch.sort(torch.randint(4, (ROWS, LENGTH), generator=generator), dim=1).values
    figures["turns"] = torch.sort(torch.randint(3, (ROWS, LENGTH), generator=generator), dim=1).values
    return mask, figures


def credit(name: str, mask: Tensor, figures: dict[str, Tensor], rows: Tensor | None = None) -> Tensor:
    groups = torch.tensor([5, 5, 5, 2, 2, 9])[torch.arange(ROWS) if rows is None else rows]
    given = {name: figures[name] for name in ("values", "turns", "calls")}
    return compute_advantage(name, figures["rewards"], mask, index=groups, gamma=0.9, lam=0.8, **given)[0]


def spoilt(tensor: Tensor, mask: Tensor, value: float) -> Tensor:
    return torch.where(mask, tensor, torch.full_like(tensor, value if tensor.is_floating_point() else -77))


@few
@given(seed=seeds, value=rubbish)
@pytest.mark.parametrize("name", list(AdvantageEstimator))
def test_masked_values_do_not_change_a_bit_of_the_advantages(name, seed, value):
    mask, figures = drawn(seed)
    broken = {key: spoilt(tensor, mask, value) for key, tensor in figures.items()}
    assert torch.equal(credit(name, mask, broken), credit(name, mask, figures))


@few
@given(seed=seeds, before=st.integers(0, 3), after=st.integers(0, 3))
@pytest.mark.parametrize("name", list(AdvantageEstimator))
def test_padding_on_either_side_and_the_order_of_rows_do_not_change_the_advantages(name, seed, before, after):
    mask, figures = drawn(seed)
    plain = credit(name, mask, figures)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
    sides = (before, after)
    moved = {key: pad(tensor[order], sides, value=3) for key, tensor in figures.items()}
    changed = credit(name, pad(mask[order], sides), moved, rows=order)
    close(changed[:, before : before + LENGTH], plain[order])
    assert not changed[:, :before].any() and not changed[:, before + LENGTH :].any()


def judge(
    kind: str, average: str, mask: Tensor, figures: dict[str, Tensor], parts: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The loss of an optimizer step and its gradient, worked out part by part (rows)."""
    weights, denominator = loss_weights(mask, rows_of(mask) // 2, average, norm_tokens=11)
    start = figures["new"].clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for rows in parts or [torch.arange(len(mask))]:
        old, advantages, returns = (figures[name][rows] for name in ("old", "advantages", "returns"))
        its_weights = None if weights is None else weights[rows]
        if kind == "value":
            given = {"vpreds": start[rows], "old_values": old, "returns": returns, "response_mask": mask[rows]}
            loss, _ = compute_value_loss(**given, cliprange_value=0.3, denominator=denominator)
        else:
            options = {"clip_low": 0.2, "clip_high": 0.28, "denominator": denominator, "weights": its_weights}
            loss, _ = compute_policy_loss(old, start[rows], advantages, mask[rows], kind=kind, **options)
        loss.backward()
        total += loss.detach()
    assert start.grad is not None
    return total, start.grad


@several
@given(seed=seeds, value=rubbish, average=averages)
@pytest.mark.parametrize("kind", LOSSES)
def test_masked_values_do_not_change_a_bit_of_a_loss_or_its_gradient(kind, average, seed, value):
    mask, figures = drawn(seed)
    broken = {key: spoilt(tensor, mask, value) for key, tensor in figures.items()}
    loss, gradient = judge(kind, average, mask, figures)
    other_loss, other_gradient = judge(kind, average, mask, broken)
    assert torch.equal(loss, other_loss) and torch.equal(gradient, other_gradient)
    assert not gradient[~mask].any() and torch.isfinite(gradient).all()


@several
@given(seed=seeds, before=st.integers(0, 3), after=st.integers(0, 3), cut=st.integers(1, ROWS - 1), average=averages)
@pytest.mark.parametrize("kind", LOSSES)
def test_padding_micro_batches_and_their_order_do_not_change_a_loss_or_its_gradient(
    kind, average, seed, before, after, cut
):
    mask, figures = drawn(seed)
    loss, gradient = judge(kind, average, mask, figures)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))
    wide = {key: pad(tensor, (before, after), value=4) for key, tensor in figures.items()}
    parts = [order[:cut], order[cut:]]
    other_loss, other_gradient = judge(kind, average, pad(mask, (before, after)), wide, parts)
    close(other_loss, loss)
    close(other_gradient[:, before : before + LENGTH], gradient)


@few
@given(seed=seeds, value=rubbish)
@pytest.mark.parametrize("kind", ["truncated", "masked", "sequence_truncated", "sequence_masked"])
def test_masked_values_do_not_change_a_bit_of_the_importance_weights(kind, seed, value):
    mask, figures = drawn(seed)
    episodes = rows_of(mask)
    plain, numbers = rollout_weights(figures["old"], figures["new"], mask, kind, episodes=episodes)
    broken = [spoilt(figures[name], mask, value) for name in ("old", "new")]
    other, other_numbers = rollout_weights(*broken, mask, kind, episodes=episodes)
    assert torch.equal(plain, other) and numbers == other_numbers


def test_an_average_over_nothing_is_zero_with_a_zero_gradient():
    start = torch.full((2, 3), math.nan, requires_grad=True)
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    loss = masked_average(start, nothing, weights=torch.full((2, 3), math.inf))
    loss.backward()
    assert float(loss.detach()) == 0.0 and start.grad is not None and not start.grad.any()
