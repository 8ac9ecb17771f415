"""Follows the metrics of a run from outside, by its folder: one line of text per line of `metrics.jsonl`. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from midthought.errors import CheckpointError
from midthought.report.console import printable
from midthought.report.progress import formatted
from midthought.report.run_folder import RunFolder
from midthought.report.run_lock import RunLock

FIRST_METRICS = (
    "reward/mean",
    "exact_match",
    "loss",
    "episode/calls",
    "episode/response_tokens",
    "kl_reference",
    "entropy",
    "grad_norm",
    "learning_rate",
)
"""Metrics that are shown; if a line has none of them, its first ones."""
NUM_METRICS = 6
NUM_EARLIER = 10
"""Lines that are shown of what was written before."""


class RunState(StrEnum):
    """State of a run, from outside."""

    RUNNING = "running"
    FINISHED = "finished"
    ENDED = "ended before its last evaluation; --resume continues it"


class RunWatcher:
    """Reads a run folder again and again."""

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` if there is no folder."""
        if not path.is_dir():
            raise CheckpointError(f"{path} is no run folder; give the folder that `midthought train` writes")
        self.path = path
        self.state = RunState.RUNNING
        """As of the last look."""
        self._folder = RunFolder(path, trackers=())
        self._size = self._num_shown = 0

    def look(self) -> Iterator[str]:
        """Yields a line for each line of the metrics that is new since the last look; the first time for the last ten at most."""
        is_held = RunLock.is_held(self.path)  # asked first: a run that ends then has written its last line
        is_finished = self._folder.summary_path.is_file()
        self.state = RunState.RUNNING if is_held else RunState.FINISHED if is_finished else RunState.ENDED
        metrics = self._folder.metrics_path
        size = metrics.stat().st_size if metrics.is_file() else 0
        if size == self._size:
            return
        rows = list(self._folder.metrics.read())
        first = self._num_shown if self._size else len(rows) - NUM_EARLIER
        self._size, self._num_shown = size, len(rows)
        yield from map(metrics_line, rows[max(first, 0) :])

    def follow(self, interval_seconds: float) -> Iterator[str]:
        """Yields lines until no process works in the folder."""
        yield from self.look()
        while self.state is RunState.RUNNING:
            time.sleep(interval_seconds)
            yield from self.look()


def metrics_line(row: Mapping[str, Any]) -> str:
    """Returns the stage, the step and some metrics of a line.

    >>> metrics_line({"stage": "ppo", "step": 3, "reward/mean": 0.51234, "time/seconds": 2.0})
    'ppo 3: reward/mean 0.512'
    """
    numbers = {key: value for key, value in row.items() if key != "step" and isinstance(value, int | float)}
    names = [name for name in FIRST_METRICS if name in numbers] or [
        key for key in numbers if not key.startswith("time/")
    ]
    shown = " · ".join(f"{name} {formatted(numbers[name])}" for name in names[:NUM_METRICS])
    return printable(f"{row['stage']} {row['step']}: {shown}").replace("\n", " ").replace("\t", " ")
