"""Chooses among kernels that compute the same: the fastest one that is right."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from midthought.engines.local.cuda_graphs import cuda_graphs

TOLERANCE = 0.02
"""Maximum difference from the expected numbers, relative to the largest one."""
NUM_REPEATS = 5

_log = logging.getLogger(__name__)


class Way(NamedTuple):
    """One of several ways to compute the same."""

    name: Any
    compute: Callable[[], Tensor]
    calls: Sequence[Callable[[], object]]
    """Timed: the same with other weights each, so that a cache does not hold them."""


def fastest_right(title: str, known: Way, others: Iterable[Way]) -> Any:
    """Returns the name of the fastest way. `known` is right; others have to compute the same."""
    expected = known.compute().float()
    best, least = known.name, seconds(known.calls)
    found = [f"{known.name} {1e6 * least:.1f} µs"]
    for way in others:
        try:
            numbers = way.compute()
            difference = float((numbers.float() - expected).abs().max() / expected.abs().max())
            if not difference <= TOLERANCE:
                found.append(f"{way.name} differs by {difference:.2g} of the largest number")
                continue
            its = seconds(way.calls)
        except Exception as error:  # compilers raise errors of many classes
            found.append(f"{way.name} {type(error).__name__}: {error}".splitlines()[0])
            continue
        found.append(f"{way.name} {1e6 * its:.1f} µs")
        if its < least:
            best, least = way.name, its
    _log.info("%s: %s", title, "; ".join(found))
    return best


def seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Of one call on a GPU, without the time to launch it: a recording of all calls is repeated."""

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
    return min(times) / 1e3 / len(calls)
