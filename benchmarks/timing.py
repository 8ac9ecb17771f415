"""Times systems in turn (A B C, C B A, …) on work of the same shape, and gives ratios round by round."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from benchmarks.work import Work


class System(Protocol):
    """One contestant."""

    def prepare(self, work: Work) -> None:
        """All that is not measured: tensors, tools, objects."""
        ...

    def run(self) -> None:
        """Do the prepared work; this is timed."""
        ...

    def check(self) -> None:
        """Raise AssertionError if the work was not done as requested."""
        ...


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        return cls(statistics.median(figures), min(figures), max(figures))

    def times(self, factor: float) -> Spread:
        return Spread(factor * self.median, factor * self.lowest, factor * self.highest)


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of every system in every round."""

    seconds: Mapping[str, list[float]]

    def per_round(self, figure: Callable[[Mapping[str, float]], float]) -> Spread:
        """A figure worked out from the seconds of each round."""
        num_rounds = len(next(iter(self.seconds.values())))
        rounds = [{name: values[number] for name, values in self.seconds.items()} for number in range(num_rounds)]
        return Spread.of([figure(seconds) for seconds in rounds])

    def ratio(self, above: str, below: str) -> Spread:
        """Seconds of the one over seconds of the other."""
        return self.per_round(lambda seconds: seconds[above] / seconds[below])

    def against(self, name: str, floor: str, waiting_seconds: float) -> Spread:
        """Seconds of system `name`, over the seconds of `floor` plus this waiting."""
        return self.per_round(lambda seconds: seconds[name] / (seconds[floor] + waiting_seconds))

    def medians(self, *names: str) -> dict[str, float]:
        """Seconds."""
        return {name: statistics.median(self.seconds[name]) for name in names}


def compare(systems: Mapping[str, System], make_work: Callable[[str, int], Work], num_rounds: int) -> Timings:
    """Every system once a round, after a round that does not count; in every other round in the opposite order, so that a
    machine that slows down or speeds up favours none.

    `make_work(name, seed)` gives a system its work. No seed comes twice: of what an engine keeps, from the last round
    or from another system that shares it, nothing is of use.
    """
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    seeds = itertools.count(1)
    for number in range(num_rounds + 1):
        gc.collect()
        for name in list(systems)[:: -1 if number % 2 else 1]:
            system = systems[name]
            system.prepare(make_work(name, next(seeds)))
            began = time.perf_counter()
            system.run()
            elapsed = time.perf_counter() - began
            system.check()
            if number:
                seconds[name].append(elapsed)
    return Timings(seconds)
