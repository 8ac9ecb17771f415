"""The faster precision is the one that was measured to be clearly faster; the clock is a number here."""

import math

import pytest

from midthought.models.precision import MIN_SPEEDUP, PrecisionChoice, faster_precision


class Machine:
    """Takes so many seconds in each precision, in turn; the last time is repeated. None: it cannot compute in it."""

    def __init__(self, **seconds: list[float] | None) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.calls: list[str] = []

    def compute(self, precision: str) -> None:
        own = self.seconds[precision]
        if own is None:
            raise RuntimeError(f"no kernel for {precision}")
        self.now += own[min(self.calls.count(precision), len(own) - 1)]
        self.calls.append(precision)

    def choice(self) -> PrecisionChoice:
        return faster_precision(self.compute, lambda: self.now)


def test_bfloat16_is_chosen_only_if_it_is_clearly_faster():
    assert Machine(float32=[0.2], bfloat16=[0.1]).choice().precision == "bfloat16"
    assert Machine(float32=[0.1], bfloat16=[0.3]).choice().precision == "float32"
    assert Machine(float32=[0.1 * (MIN_SPEEDUP - 0.01)], bfloat16=[0.1]).choice().precision == "float32"


def test_the_first_round_does_not_count_and_the_median_of_at_least_three_others_does():
    machine = Machine(float32=[60.0, 0.2, 0.1, 0.3], bfloat16=[20.0, 0.05, 0.05, 0.1])
    choice = machine.choice()
    assert (choice.float32_seconds, choice.bfloat16_seconds) == (pytest.approx(0.3), pytest.approx(0.1))
    assert machine.calls == ["float32", "bfloat16"] * 4
    assert str(choice) == "bfloat16 (measured: bfloat16 is 3.00 times as fast; 300 ms in float32, 100 ms in bfloat16)"


@pytest.mark.parametrize("slow", [0.1, 10.0])
@pytest.mark.parametrize(
    ("speedup", "expected"), [(0.5, "float32"), (1.15, "float32"), (1.25, "bfloat16"), (2, "bfloat16")]
)
def test_a_machine_that_is_busy_for_a_while_chooses_as_an_idle_one_does(slow, speedup, expected):
    """One of the counted rounds, or one call in it, takes four times as long; and what takes minutes is repeated, too."""
    for busy in range(1, 4):
        for factors in ((4, 1), (1, 4), (4, 4)):
            float32, bfloat16 = [slow * speedup] * 4, [slow] * 4
            float32[busy] *= factors[0]
            bfloat16[busy] *= factors[1]
            machine = Machine(float32=float32, bfloat16=bfloat16)
            assert machine.choice().precision == expected
            assert min(machine.calls.count(each) for each in ("float32", "bfloat16")) >= 4


def test_a_precision_that_cannot_be_computed_is_not_chosen():
    choice = Machine(float32=[0.1], bfloat16=None).choice()
    assert choice.precision == "float32" and str(choice) == "float32 (bfloat16 cannot be computed here)"
    choice = Machine(float32=None, bfloat16=[0.1]).choice()
    assert choice.precision == "bfloat16" and math.isinf(choice.speedup)
    with pytest.raises(RuntimeError, match="no kernel for float32"):
        Machine(float32=None, bfloat16=None).choice()


def test_a_precision_that_fails_in_a_later_round_is_not_chosen():
    machine = Machine(float32=[0.2], bfloat16=[0.1])
    compute = machine.compute

    def fails_at_last(precision: str) -> None:
        if machine.calls.count(precision) == 3 and precision == "bfloat16":
            raise RuntimeError("out of memory")
        compute(precision)

    machine.compute = fails_at_last
    assert machine.choice().precision == "float32"
