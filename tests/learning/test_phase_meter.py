"""Seconds and peak memory of phases; the peak of the process survives a reset."""

from __future__ import annotations

import mmap
import time

import pytest
import torch

from midthought.learning.phase_meter import STATUS, Measured, PhaseMeter, process_peak_bytes

MIB = 2**20
on_linux = pytest.mark.skipif(not STATUS.exists(), reason="the peak is reset under Linux")


def hold(num_mib: int) -> None:
    """Takes memory from the system itself: an allocator may reuse what an earlier test has freed."""
    with mmap.mmap(-1, num_mib * MIB) as region:
        for offset in range(0, num_mib * MIB, mmap.PAGESIZE):
            region[offset] = 1


@on_linux
def test_each_phase_has_its_own_peak_and_the_process_keeps_the_largest():
    meter = PhaseMeter(torch.nn.Linear(8, 8))
    with meter.phase("update"):
        hold(256)
    with meter.phase("saving"):
        hold(64)
    difference = meter.measured["update"].peak_bytes - meter.measured["saving"].peak_bytes
    assert difference == pytest.approx((256 - 64) * MIB, rel=0.2)
    assert process_peak_bytes() >= meter.measured["update"].peak_bytes


def test_a_phase_that_raises_is_measured_too_and_calls_add_up():
    meter = PhaseMeter()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"), meter.phase("scoring"):
            time.sleep(0.01)
            raise ValueError("no")
    found = meter.measured["scoring"]
    assert (found.calls, found.peak_bytes) == (2, 0)
    assert found.seconds >= 2 * 0.01 > meter.last_seconds["scoring"] >= 0.01


def test_measurements_of_two_processes_are_one():
    both = Measured(2, 3.0, 10, 20) + Measured(1, 0.5, 30, 5)
    assert both == Measured(3, 3.5, 30, 20)
