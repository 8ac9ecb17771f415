"""The coefficient of the entropy bonus with a target, by hand."""

import math

import pytest

from midthought.algo.entropy import EntropyController


def test_without_a_target_the_coefficient_is_constant():
    controller = EntropyController(0.02)
    assert [controller.update(entropy) for entropy in (0.1, 3.0, math.nan)] == [0.02] * 3


def test_the_bonus_grows_while_the_entropy_is_low_and_is_off_while_it_is_high():
    controller = EntropyController(0.0, target=0.5, step=0.1, max_coef=0.25)
    used = [controller.update(entropy) for entropy in (0.4, 0.4, 0.4, 0.4, 0.6, 0.6, 0.5, 0.4)]
    # c before each update: 0, 0.1, 0.2, 0.25 (limited), 0.25, 0.15, 0.05, 0 (at the target it falls, and is still used)
    assert used == pytest.approx([0.0, 0.1, 0.2, 0.25, 0.0, 0.0, 0.05, 0.0])
    assert controller.coef == pytest.approx(0.1)


def test_a_restored_controller_goes_on_as_before():
    controller, other = (EntropyController(0.1, target=0.5, step=0.03, max_coef=1.0) for _ in range(2))
    controller.update(0.2)
    other.load_state_dict(controller.state_dict())
    assert [controller.update(0.3) for _ in range(3)] == [other.update(0.3) for _ in range(3)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"coef": -1.0}, "coef must be a finite number of 0 or more, got -1"),
        ({"coef": 0.1, "target": 0.0}, "target must be a finite number above 0"),
        ({"coef": 0.1, "target": 0.5, "step": 0.0}, "step must be above 0"),
        ({"coef": 0.1, "target": 0.5, "max_coef": 0.05}, "coef at most max_coef"),
    ],
)
def test_arguments_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        EntropyController(**wrong)


def test_an_entropy_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="the entropy is nan"):
        EntropyController(0.0, target=0.5).update(math.nan)
