"""Chooses among kernels that compute the same: those that are right, and the fastest of them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from midthought.engines.local.cuda_graphs import cuda_graphs

TOLERANCE = 0.02
"""Maximum difference from the expected numbers, relative to the largest one."""
MIN_GAIN = 0.005
"""Share of the time that a change has to save."""
NUM_SWEEPS = 2
NUM_REPEATS = 5

_log = logging.getLogger(__name__)


def those_that_are_right(title: str, known: Any, others: Iterable[Any], compute: Callable[[Any], Tensor]) -> list[Any]:
    """Returns the ways that compute what the known one computes, and it as the last one."""
    expected, right = compute(known).float(), []
    for way in others:
        try:
            difference = float((compute(way).float() - expected).abs().max() / expected.abs().max())
        except Exception as error:  # compilers raise errors of many classes
            _log.info("%s: %s: %s", title, way, f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        if difference <= TOLERANCE:
            right.append(way)
        else:
            _log.warning("%s: %s is not used: it differs by %.2g of the largest number", title, way, difference)
    return [*right, known]


def fastest(ways: Mapping[str, Sequence[Any]], seconds_of: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    """Returns one way for each name. Begins with the first of each, then changes one at a time if that is faster."""
    plan = {name: each[0] for name, each in ways.items()}
    least = seconds_of(plan)
    for name, way in itertools.chain.from_iterable(
        [(name, way) for name, each in ways.items() for way in each] for _ in range(NUM_SWEEPS)
    ):
        if way == plan[name]:
            continue
        now = seconds_of(plan | {name: way})
        _log.info("%s: %s: %.1f µs, least %.1f", name, way, 1e6 * now, 1e6 * least)
        if now < (1.0 - MIN_GAIN) * least:
            plan, least = plan | {name: way}, now
    return plan


def seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Of all calls on a GPU, without the time to launch them: a recording of them is repeated."""

    def compute() -> Tensor:
        for call in calls:
            call()
        return torch.empty(0)

    replay = cuda_graphs()(compute)
    times = []
    for _ in range(NUM_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return min(times) / 1e3
