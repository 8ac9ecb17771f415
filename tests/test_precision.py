"""The faster precision is the one that was measured to be faster; the clock is a number here."""

import math

import pytest

from midthought.precision import MIN_SPEEDUP, PrecisionChoice, faster_precision


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


def test_the_first_call_does_not_count_and_the_shortest_time_does():
    machine = Machine(float32=[0.3, 0.2, 0.1, 0.2], bfloat16=[0.02, 0.05, 0.05, 0.04])
    choice = machine.choice()
    assert (choice.float32_seconds, choice.bfloat16_seconds) == (pytest.approx(0.1), pytest.approx(0.04))
    assert machine.calls == ["float32", "bfloat16"] * 4
    assert str(choice) == "bfloat16 (measured: bfloat16 is 2.50 times as fast; 100 ms in float32, 40 ms in bfloat16)"


def test_a_slow_operation_is_not_repeated_beyond_the_limit():
    twice = Machine(float32=[0.5], bfloat16=[0.6])
    assert twice.choice().precision == "float32" and len(twice.calls) == 4


def test_a_first_call_that_loads_something_does_not_count_however_long_it_takes():
    machine = Machine(float32=[60.0, 0.1], bfloat16=[20.0, 0.4])
    assert machine.choice().precision == "float32" and len(machine.calls) == 4


def test_a_precision_that_cannot_be_computed_is_not_chosen():
    choice = Machine(float32=[0.1], bfloat16=None).choice()
    assert choice.precision == "float32" and str(choice) == "float32 (bfloat16 cannot be computed here)"
    choice = Machine(float32=None, bfloat16=[0.1]).choice()
    assert choice.precision == "bfloat16" and math.isinf(choice.speedup)
    with pytest.raises(RuntimeError, match="no kernel for float32"):
        Machine(float32=None, bfloat16=None).choice()
