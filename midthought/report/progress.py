"""Progress of a stage: counts, rate, time left and the metrics that change while it runs. Prints nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise

from midthought.report.results import duration

RATE_WINDOW_SECONDS = 30.0
NUM_SPARKS = 12
SPARKS = "▁▂▃▄▅▆▇█"


class Progress:
    """A running stage. `advance` counts; keyword arguments are metrics to show, the first one with a sparkline."""

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
        self.on_change: Callable[[Progress], None] | None = None
        """Called after every change."""
        self._clock = clock
        self._started = clock()
        self._marks: deque[tuple[float, int]] = deque([(self._started, 0)])
        self._history: list[float] = []

    def start_at(self, done: int) -> None:
        """Sets the count of a resumed stage; earlier units do not count for the rate."""
        self.done = done
        self._marks = deque([(self._clock(), done)])

    def advance(self, num: int = 1, **fields: float | str) -> None:
        """Counts `num` more units and shows `fields` (`loss=0.31`, `reward=0.8`) from now on."""
        self.done += num
        now = self._clock()
        self._marks.append((now, self.done))
        while len(self._marks) > 2 and self._marks[1][0] <= now - RATE_WINDOW_SECONDS:
            self._marks.popleft()
        self.show(**fields)

    def follow(self, done: int, total: int) -> None:
        """Takes over the counts of work that reports its own progress."""
        self.total = total
        self.advance(done - self.done)

    def show(self, **fields: float | str) -> None:
        """Shows `fields` without counting."""
        self.fields |= fields
        first = next(iter(self.fields), None)
        value = fields.get(first) if first else None
        if isinstance(value, int | float):
            self._history.append(float(value))
        if self.on_change is not None:
            self.on_change(self)

    @property
    def seconds(self) -> float:
        """Seconds since the stage started."""
        return self._clock() - self._started

    @property
    def rate(self) -> float | None:
        """Units per second over the last half minute; None until there are two measurements."""
        (start, done_then), (end, done_now) = self._marks[0], self._marks[-1]
        return (done_now - done_then) / (end - start) if end > start and done_now > done_then else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining seconds at the present rate; None if unknown."""
        if self.total is None or self.rate is None:
            return None
        return max(self.total - self.done, 0) / self.rate

    def counts(self) -> str:
        """`120/600 steps · 3.4/s · 2 min 21 s left`"""
        if self.total is None and self.done == 0:
            return duration(self.seconds)
        of = f"{self.done:,}/{self.total:,}" if self.total is not None else f"{self.done:,}"
        parts = [f"{of} {self.unit}"]
        if self.rate is not None:
            parts.append(f"{self.rate:.3g}/s" if self.rate >= 1 else f"{1 / self.rate:.3g} s each")
        if self.seconds_left is not None and self.done < (self.total or 0):
            parts.append(f"{duration(self.seconds_left)} left")
        return " · ".join(parts)

    def metrics(self, *, sparks: bool = True) -> str:
        """`reward 0.81 ▁▂▅▇ · KL 0.012`"""
        parts = [f"{name.replace('_', ' ')} {formatted(value)}" for name, value in self.fields.items()]
        if parts and sparks and len(self._history) > 1:
            parts[0] += f" {sparkline(self._history)}"
        return " · ".join(parts)


def sparkline(values: list[float], num_sparks: int = NUM_SPARKS) -> str:
    """Draws values as a sparkline of means of equal runs, scaled from the lowest to the highest.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    count = min(len(values), num_sparks)
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    finite = [mean for mean in means if abs(mean) < float("inf")]
    if not finite:
        return ""
    low, spread = min(finite), max(finite) - min(finite)
    top = len(SPARKS) - 1
    return "".join(
        SPARKS[int((mean - low) / spread * top + 0.5) if spread > 0 else 0] if mean in finite else " " for mean in means
    )


def formatted(value: float | str) -> str:
    """Formats a number with three significant digits, integers in full."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
