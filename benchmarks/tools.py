"""Part `tools`: episodes whose tools take time; some calls take much longer than others."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.options import Options
from benchmarks.reciter import Reciter
from benchmarks.systems import Ours, make_engine
from benchmarks.table import Row
from benchmarks.timing import Spread, System, compare
from benchmarks.work import SLOW_FACTOR, Latency, Shape, Work, always, some_slow
from midthought.engines.local.engine import LocalEngine

PART = "tools"
LATENCIES = (0.05, 0.2)
"""Seconds of a call."""
MAX_AGAINST_WAITING = 1.1


class Watched(Ours):
    """Notes for every run, the first uncounted one included, when half of the episodes had ended."""

    def __init__(self, reciter: Reciter, engine: LocalEngine, latency: Latency) -> None:
        super().__init__(reciter, engine, latency)
        self.half_seconds: list[float] = []

    def check(self) -> None:
        super().check()
        self.half_seconds.append(self.finished_seconds[len(self.finished_seconds) // 2])


def measure(options: Options) -> Iterator[Row]:
    shape = Shape(num_episodes=24, num_prompt=40, num_span=12, num_result=24) if options.quick else Shape()
    latencies = (0.02,) if options.quick else LATENCIES
    for size in options.sizes:
        yield from slow_tools(options, size, shape, latencies)


def slow_tools(options: Options, size: str, shape: Shape, latencies: tuple[float, ...]) -> Iterator[Row]:
    """All latencies in turn, each on an engine of its own: prompts are the same, and one would keep them."""
    reciter = options.reciter(size, num_span=shape.num_span)
    even = {seconds: Watched(reciter, make_engine(reciter, shape), always(seconds)) for seconds in latencies}
    uneven = {seconds: Watched(reciter, make_engine(reciter, shape), some_slow(seconds)) for seconds in latencies}
    systems: dict[str, System] = {"G": Ours(reciter, make_engine(reciter, shape))}
    systems |= {_even(seconds): system for seconds, system in even.items()}
    systems |= {_uneven(seconds): system for seconds, system in uneven.items()}
    timings = compare(systems, lambda _, seed: Work(reciter, shape, seed), options.num_rounds)
    setting = shape.describe(size)
    for seconds in latencies:
        waiting, name = shape.num_calls * seconds, _even(seconds)
        yield Row(
            part=PART,
            setting=setting,
            figure=f"{name}: time against G + {waiting:g} s",
            value=timings.against(name, "G", waiting),
            at_most=MAX_AGAINST_WAITING,
            seconds=timings.medians(name, "G"),
        )
        slowest, name = waiting + (SLOW_FACTOR - 1) * seconds, _uneven(seconds)
        yield Row(
            part=PART,
            setting=setting,
            figure=f"{name}: time against G + {slowest:g} s, the waiting of an episode with a slow call",
            value=timings.against(name, "G", slowest),
            seconds=timings.medians(name, "G"),
        )
        pairs = zip(uneven[seconds].half_seconds[1:], even[seconds].half_seconds[1:], strict=True)
        yield Row(
            part=PART,
            setting=setting,
            figure=f"{name}: until half of the episodes have ended, against the same without slow calls",
            value=Spread.of([slow / usual for slow, usual in pairs]),
        )


def _even(seconds: float) -> str:
    return f"{1000 * seconds:g} ms tools"


def _uneven(seconds: float) -> str:
    return f"{_even(seconds)}, 5 % of calls {SLOW_FACTOR:g} × slower"
