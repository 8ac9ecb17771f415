"""Reads a run folder from outside, also of an unfinished run: for the report (any file may be missing), and one line of text
per line of `metrics.jsonl`. Changes nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from midthought.errors import CheckpointError
from midthought.files.output_folder import kind_of
from midthought.files.regular import read_json_object, read_regular_text
from midthought.report.console import formatted, printable
from midthought.report.json_lines import json_value
from midthought.report.run_folder import RunFolder, flat_keys
from midthought.report.run_lock import RunLock

Metrics = Mapping[str, Mapping[str, list[tuple[int, float]]]]
"""stage → key → (step, value) in the order of writing; null values are left out."""
EVALUATIONS = ("validation", "validation.sampled", "validation.tool_off", "validation.shuffled")
"""Stages of a trainer's evaluations; recipes name their results `exact_match`, `sampled.exact_match`, …"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """Contents of the report of one run."""

    name: str
    config: str | None = None
    """Text of `config.yaml`."""
    starts: Sequence[Mapping[str, Any]] = ()
    """Entries of `settings_history.yaml`."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Flat dotted keys; empty before the last evaluation."""
    metrics: Metrics = field(default_factory=dict)
    findings: Sequence[Mapping[str, Any]] = ()
    """What the checks found during the run, in the order of writing."""
    arm_reports: Sequence[str] = ()
    """Names of the control arms that have a report of their own."""


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Reads the run at `path`, without its episodes. Raises CheckpointError if there is none, or a file cannot be read."""
    folder = RunFolder(path)
    known = (folder.config_path, folder.metrics_path, folder.trajectories_path, folder.summary_path)
    if not any(file.exists() for file in known):
        raise CheckpointError(
            f"{folder.path} is not a run folder: none of {', '.join(file.name for file in known)} is there; "
            "give the folder that `midthought train` wrote"
        )
    summary, metrics = _read_summary(folder.summary_path), _read_metrics(folder)
    if summary:  # an evaluation may follow the training
        newest = [row for row in folder.metrics.read() if row.get("stage") == "validation"][-1:]
        kept = {key: value for key, value in summary.items() if not (newest and key.startswith("validation/"))}
        validation = {f"validation/{key}": value for row in newest for key, value in row.items() if key != "stage"}
        summary = kept | validation | before_and_after(metrics)
    return RunRecord(
        name=folder.path.resolve().name,
        config=read_regular_text(folder.config_path, "replace") if folder.config_path.exists() else None,
        starts=[entry for entry in folder.settings_history if isinstance(entry, dict)],
        summary=summary,
        metrics=metrics,
        findings=[json_value(row) for row in folder.findings.read()],
        arm_reports=sorted(report.parent.name for report in folder.path.glob("arms/*/report.html")),
    )


def before_and_after(metrics: Metrics) -> dict[str, float]:
    """Returns exact match of a trainer's evaluations, as recipes write it into their summary: the last one before the first
    iteration (`before.…`) and the last one after the last (`after.…`). Empty if there was only validation during training."""
    found: dict[str, float] = {}
    last = last_iteration(metrics)
    for stage in EVALUATIONS:
        key = f"{stage}.exact_match".partition(".")[2]
        for when, wanted in {0: "before", last: "after"}.items() if last else ((0, "before"),):
            values = [value for step, value in metrics.get(stage, {}).get("exact_match", ()) if step == when]
            counts = [value for step, value in metrics.get(stage, {}).get("episode/count", ()) if step == when]
            if values and counts:
                found = {"num_questions": counts[-1]} | found | {f"{wanted}.{key}": values[-1]}
    return found if found.keys() - {"num_questions", "after.exact_match"} else {}


def last_iteration(metrics: Metrics) -> int:
    """Returns the number of the last iteration; 0 before the first. Its reward is null if every episode failed."""
    return max((points[-1][0] for points in metrics.get("ppo", {}).values()), default=0)


def shown_findings(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns title, `when`, observation, action and `start_step` of the findings of `findings.jsonl` in their order, each once:
    a resumed run may report one again."""
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        start, step = (int(row.get(key) or 0) for key in ("start_step", "step"))
        since = f"since iteration {start:,}, reported after iteration {step:,}, policy {row.get('policy')}"
        title = f"{row.get('check')}" + (f": {row['subject']}" if row.get("subject") else "")
        found[title, start] = {
            "title": title,
            "when": since if step else "before training",
            "observation": str(row.get("observation") or ""),
            "action": str(row.get("action") or ""),
            "start_step": start,
        }
    return list(found.values())


def _read_summary(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return flat_keys(json_value(read_json_object(path)))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); delete it and evaluate again") from None


def _read_metrics(folder: RunFolder) -> dict[str, dict[str, list[tuple[int, float]]]]:
    stages: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in folder.metrics.read():
        stage = stages.setdefault(str(row.get("stage", "run")), {})
        for key, value in json_value(row).items():
            if key not in ("stage", "step") and isinstance(value, int | float):
                stage.setdefault(key, []).append((int(row.get("step") or 0), float(value)))
    return stages


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

    `interval_seconds`: time between two looks at the folder; None: looks once. Raises `CheckpointError` if there is no folder,
    or one without metrics that is not a run's.
    """
    log, size, num_shown = RunFolder(path, trackers=()).metrics, -1, None
    if not path.is_dir() or not (kind_of(path) == "run" or log.path.exists()):
        raise CheckpointError(f"{path} is no run folder; give the folder that `midthought train` writes")
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
    others = [key for key in numbers if not key.startswith("time/")]
    names = [name for name in FIRST_METRICS if name in numbers] or others
    shown = " · ".join(f"{name} {formatted(numbers[name])}" for name in names[:NUM_METRICS])
    return printable(f"{row['stage']} {row['step']}: {shown}").replace("\n", " ").replace("\t", " ")
