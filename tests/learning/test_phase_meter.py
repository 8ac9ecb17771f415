"""Seconds of phases."""

import time

import pytest

from midthought.learning.phase_meter import PhaseMeter


def test_a_phase_that_raises_is_measured_too_and_only_the_last_call_counts():
    meter = PhaseMeter()
    for seconds in (0.2, 0.01):
        with pytest.raises(ValueError, match="no"), meter.phase("scoring"):
            time.sleep(seconds)
            raise ValueError("no")
    assert meter.last_seconds["scoring"] >= 0.01
    assert meter.last_seconds.keys() == {"scoring"}
