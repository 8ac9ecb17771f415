"""Follows the metrics of a run from outside, by its folder: one line of text per line of `metrics.jsonl`. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from midthought.errors import CheckpointError
from midthought.report.console import formatted, printable
from midthought.report.run_folder import RunFolder
from midthought.report.run_lock import RunLock

FIRST_METRICS = (
    *("reward/mean", "exact_match", "loss", "episode/calls", "episode/response_tokens"),
    *("kl_reference", "entropy", "grad_norm", "learning_rate"),
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


def state_of(path: Path) -> RunState:
    """Returns the state of the run in this folder."""
    if RunLock.is_held(path):
        return RunState.RUNNING
    return RunState.FINISHED if RunFolder(path, trackers=()).summary_path.is_file() else RunState.ENDED


def follow(path: Path, interval_seconds: float | None = None) -> Iterator[str]:
    """Yields a line for each line of the metrics until no process works in the folder; of earlier lines the last ten at most.

    `interval_seconds`: time between two looks at the folder; None: looks once. Raises `CheckpointError` if there is no folder.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is no run folder; give the folder that `midthought train` writes")
    log, size, num_shown = RunFolder(path, trackers=()).metrics, -1, None
    while True:
        state = state_of(path)  # asked first: a run that ends then has written its last line
        now = log.path.stat().st_size if log.path.exists() else 0
        if now != size:
            rows = list(log.read())
            yield from map(metrics_line, rows[max(len(rows) - NUM_EARLIER, 0) if num_shown is None else num_shown :])
            size, num_shown = now, len(rows)
        if interval_seconds is None or state is not RunState.RUNNING:
            return
        time.sleep(interval_seconds)


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
