"""Progress of a stage: counts, rate, time left and the metrics that change while it runs. Prints nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from midthought.report.results import duration

SPARKS = "▁▂▃▄▅▆▇█"


class Progress:
    """A running stage. `advance` counts; keyword arguments are metrics to show."""

    def __init__(
        self, label: str, *, total: int | None = None, unit: str = "steps", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label = label
        """The stage's number and title: `[2/6] Warm-up`."""
        self.total = total
        """Number of units; None if unknown."""
        self.unit = unit
        self.done = 0
        self.fields: dict[str, float | str] = {}
        self.on_change: Callable[[], None] | None = None
        """Called after every change."""
        self._clock = clock
        self._began = clock()
        self._start = self._began, 0

    def start_at(self, done: int) -> None:
        """Sets the count of a resumed stage; earlier units do not count for the rate."""
        self.done = done
        self._start = self._clock(), done

    def advance(self, num: int = 1, **fields: float | str) -> None:
        """Counts `num` more units and shows `fields` (`loss=0.31`, `reward=0.8`) from now on."""
        self.done += num
        self.fields |= fields
        if self.on_change is not None:
            self.on_change()

    def follow(self, done: int, total: int) -> None:
        """Takes over the counts of work that reports its own progress."""
        self.total = total
        self.advance(done - self.done)

    @property
    def seconds(self) -> float:
        """Seconds since the stage started."""
        return self._clock() - self._began

    def counts(self) -> str:
        """`120/600 steps · 3.4/s · 2 min 21 s left`; the rate is the mean since the start."""
        if self.total is None and self.done == 0:
            return duration(self.seconds)
        of = f"{self.done:,}/{self.total:,}" if self.total is not None else f"{self.done:,}"
        parts = [f"{of} {self.unit}"]
        start, done_before = self._start
        if (count := self.done - done_before) > 0 and (seconds := self._clock() - start) > 0:
            rate = count / seconds
            parts.append(f"{rate:.3g}/s" if rate >= 1 else f"{1 / rate:.3g} s each")
            if self.done < (self.total or 0):
                parts.append(f"{duration(((self.total or 0) - self.done) / rate)} left")
        return " · ".join(parts)

    def line(self) -> str:
        """The counts and the metrics."""
        return " · ".join(filter(None, (self.counts(), self.metrics())))

    def metrics(self) -> str:
        """`reward 0.81 · KL 0.012`"""
        return " · ".join(f"{name.replace('_', ' ')} {formatted(value)}" for name, value in self.fields.items())


def sparkline(values: list[float]) -> str:
    """Draws one sign per value, scaled from the lowest to the highest; a blank for a value that is not finite.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    finite = [value for value in values if math.isfinite(value)]
    low = min(finite, default=0.0)
    spread = max(finite, default=0.0) - low or 1.0
    top = len(SPARKS) - 1
    return "".join(SPARKS[int((each - low) / spread * top + 0.5)] if math.isfinite(each) else " " for each in values)


def formatted(value: float | str) -> str:
    """Formats a number with three significant digits, integers in full."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
