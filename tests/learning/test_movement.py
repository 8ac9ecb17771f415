"""How far a step moves the weights: by hand, with weight decay, and which weights are compared."""

import pytest
import torch
from torch import nn

from midthought.learning.optimizer import NUM_MATRICES, Movement


def weights(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor([values]))


def moved_by(
    parameters: list[nn.Parameter], change: float, *, peak: float = 0.1, decay: float = 0.0
) -> dict[str, float]:
    movement = Movement(parameters)
    movement.begin()
    with torch.no_grad():
        for each in parameters:
            each.mul_(1 - decay).add_(change)
    return movement.end(peak, decay)


def test_the_change_relative_to_the_weights_and_to_the_learning_rate():
    found = moved_by([weights(3.0, 4.0)], 0.05)
    assert found["weight_change"] == pytest.approx(0.05 / (25 / 2) ** 0.5, rel=1e-5)
    assert found["step_size"] == pytest.approx(0.5, rel=1e-5)


def test_weight_decay_is_no_change():
    found = moved_by([weights(3.0, 4.0)], 0.0, decay=0.25)
    assert found["weight_change"] < 1e-7 and found["step_size"] < 1e-6


def test_a_learning_rate_of_0_gives_no_step():
    assert moved_by([weights(1.0)], 0.0, peak=0.0) == {"weight_change": 0.0, "step_size": 0.0}


def test_only_vectors_are_compared_if_there_is_no_matrix():
    assert moved_by([nn.Parameter(torch.ones(4))], 0.01)["weight_change"] == pytest.approx(0.01, rel=1e-4)


def test_large_matrices_are_left_out_and_their_change_does_not_count():
    small = [weights(1.0, 1.0) for _ in range(3 * NUM_MATRICES)]
    large = nn.Parameter(torch.ones(100, 100))
    movement = Movement([*small, large])
    movement.begin()
    with torch.no_grad():
        large.add_(1.0)
    assert movement.end(0.1, 0.0)["weight_change"] == 0.0
