"""Importance weights between recomputed and sampled log-probabilities, by hand."""

import math

import pytest
import torch
from token_rows import rows_of

from midthought.algo.shaping import rollout_weights

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
    assert weigh("truncated", level="sequence")[0] == [[0.75, 0.75, 0.75, 0.0], [1.0, 1.0, 0.0, 0.0]]
    assert weigh("masked", level="sequence", max_weight=0.9)[0] == [[0.75, 0.75, 0.75, 0.0], [0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("kind", ["truncated", "masked"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_where_both_compute_alike_every_weight_is_one(kind, level):
    same = torch.tensor([[-0.3, -700.0, math.nan]])
    mask = torch.tensor([[True, True, False]])
    weights, _ = rollout_weights(same, same, mask, kind, level=level, episodes=rows_of(mask))
    assert weights.tolist() == [[1.0, 1.0, 0.0]]


def test_weights_stay_finite_and_carry_no_gradient():
    recomputed = torch.tensor([[0.0, 0.0]], requires_grad=True)
    sampled, everywhere = torch.tensor([[-900.0, -900.0]]), torch.ones(1, 2, dtype=torch.bool)
    options = {"level": "sequence", "episodes": rows_of(everywhere), "max_weight": math.inf}
    weights, _ = rollout_weights(recomputed, sampled, everywhere, "truncated", **options)
    assert torch.isfinite(weights).all() and not weights.requires_grad
