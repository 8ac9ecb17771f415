"""Shows a run from outside, by its folder: state, progress, latest metrics, as lines of text. Changes nothing."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from midthought.errors import CheckpointError
from midthought.report.console import printable
from midthought.report.live_status import INTERVAL_SECONDS, read_live
from midthought.report.progress import formatted, sparkline
from midthought.report.results import duration
from midthought.report.run_folder import RunFolder
from midthought.report.run_lock import RunLock

SILENT_SECONDS = 60 * INTERVAL_SECONDS
"""A running stage that wrote nothing for this long is reported."""
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
"""Metrics that are shown first, if the stage has them."""
LINE_SECONDS = 10.0
"""Without a terminal, a line is also printed after this time, if something has changed."""


class RunState(StrEnum):
    """State of a run, from outside."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    KILLED = "killed"
    NOT_STARTED = "not started"

    @property
    def is_end(self) -> bool:
        """Whether nothing more will happen."""
        return self not in (RunState.RUNNING, RunState.NOT_STARTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A run at one moment."""

    path: Path
    state: RunState
    reason: str = ""
    """Why it ended, or that it is silent."""
    live: Mapping[str, Any] = field(default_factory=dict)
    stage: str = ""
    """Stage of the latest metrics."""
    rows: Sequence[Mapping[str, Any]] = ()
    """The metrics of this stage."""
    findings: Sequence[str] = ()
    """What the guards found, one line each."""


class RunWatcher:
    """Reads a run folder again and again; metrics and findings only if `metrics.jsonl` has changed.

    `find`: returns what the guards find in the run.
    """

    def __init__(self, path: Path, find: Callable[[Path], Iterable[str]] = lambda _: ()) -> None:
        """Raises `CheckpointError` if there is no folder."""
        if not path.is_dir():
            raise CheckpointError(f"{path} is no run folder; give the folder that `midthought train` writes")
        self.path, self._find = path, find
        self._folder = RunFolder(path, trackers=())
        self._size = -1
        self._rows: list[dict[str, Any]] = []
        self._findings: list[str] = []

    def look(self) -> Watched:
        """Returns the present state."""
        is_held = RunLock.is_held(self.path)  # asked first: a run that ends before its state is read says so there
        live = read_live(self.path)
        state, reason = self._state(live, is_held)
        self._read_metrics()
        stage = str(self._rows[-1]["stage"]) if self._rows else ""
        if stage == "validation":
            stage = next((str(row["stage"]) for row in reversed(self._rows) if row["stage"] != "validation"), stage)
        rows = [row for row in self._rows if row["stage"] == stage]
        return Watched(
            path=self.path, state=state, reason=reason, live=live, stage=stage, rows=rows, findings=self._findings
        )

    def _state(self, live: Mapping[str, Any], is_held: bool) -> tuple[RunState, str]:
        said = live.get("state")
        if is_held:
            silence = time.time() - float(live.get("time") or time.time())
            is_silent = said == "running" and silence > SILENT_SECONDS
            return RunState.RUNNING, f"no sign of life for {duration(silence)}" if is_silent else ""
        if said == "running":
            return RunState.KILLED, "its process is gone; continue the run with --resume"
        if said in ("failed", "stopped"):
            return RunState(said), str(live.get("error") or "")
        if self._folder.summary_path.is_file():
            return RunState.FINISHED, ""
        return (RunState.STOPPED, "") if said == "done" else (RunState.NOT_STARTED, "")

    def _read_metrics(self) -> None:
        size = self._folder.metrics_path.stat().st_size if self._folder.metrics_path.is_file() else 0
        if size == self._size:
            return
        self._size = size
        self._rows = list(self._folder.metrics.read())
        self._findings = list(self._find(self.path)) if self._rows else []


def status_line(watched: Watched) -> str:
    """Returns one line: state, stage, progress, and the first metric."""
    parts = [f"{watched.path}: {watched.state}"]
    if watched.state is RunState.RUNNING and watched.live:
        stage = watched.live.get("stage", {})
        parts += [str(stage.get("label", "")), str(stage.get("counts", "")), _activity(watched.live)]
    parts += [f"{name} {value}" for name, value, _ in _metrics(watched)[:1]]
    return " · ".join(printable(part) for part in (*parts, watched.reason) if part)


def status_lines(watched: Watched, width: int = 80, height: int = 24) -> list[str]:
    """Returns at most `height` lines of at most `width` characters."""
    state = f"{watched.state}: {watched.reason}" if watched.reason else watched.state
    lines = [f"{state}  {watched.path}"]
    lines += _progress(watched.live, width)
    found = [f"! {finding}" for finding in watched.findings] or ["No guard has a finding."]
    metrics = _metrics(watched)
    shown = metrics[: max(1, height - len(lines) - 3 - min(len(found), 4))]
    if shown:
        name_width = max(len(name) for name, _, _ in shown)
        lines += ["", f"{watched.stage} {watched.rows[-1]['step']}"]
        lines += [f"  {name:{name_width}}  {value:>9}  {spark}" for name, value, spark in shown]
    if watched.rows:
        lines += ["", *found[:4]]
    cut = [printable(line).replace("\n", " ").replace("\t", " ") for line in lines[:height]]
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in cut]


def _progress(live: Mapping[str, Any], width: int) -> Iterator[str]:
    stage = live.get("stage")
    if not stage:
        return
    yield f"{stage['label']}  {stage['counts']}"
    if stage.get("total"):
        bar_width = min(60, width)
        filled = round(bar_width * min(1.0, stage["done"] / stage["total"]))
        yield "█" * filled + "░" * (bar_width - filled)
    if live.get("state") == "running" and (doing := _activity(live)):
        yield doing


def _activity(live: Mapping[str, Any]) -> str:
    """`sampling: 87/128 episodes · 12,300 tokens · 1,530 tokens/s · 3 tools running`"""
    doing = live.get("activity", {})
    parts = []
    if doing.get("num_episodes"):
        parts.append(f"{doing['num_done']:,}/{doing['num_episodes']:,} episodes")
    if doing.get("num_tokens"):
        parts.append(f"{doing['num_tokens']:,} tokens · {doing['tokens_per_second']:,.0f} tokens/s")
    if doing.get("num_tools_running"):
        parts.append(f"{doing['num_tools_running']} tools running")
    phase = str(doing.get("phase") or "").replace("_", " ")
    return ": ".join(part for part in (phase, " · ".join(parts)) if part)


def _metrics(watched: Watched) -> list[tuple[str, str, str]]:
    """Returns name, latest value and sparkline of the metrics, the important ones first."""
    if not watched.rows:
        return []
    last = watched.rows[-1]
    names = [name for name in FIRST_METRICS if name in last]
    names += [name for name in last if name not in (*names, "stage", "step") and not name.startswith("time/")]
    found = []
    for name in names:
        values = [float(row[name]) for row in watched.rows if isinstance(row.get(name), int | float)]
        if values and isinstance(last[name], int | float):
            found.append((name, formatted(last[name]), sparkline(values, 24) if len(values) > 1 else ""))
    return found


def follow(watcher: RunWatcher, *, interval_seconds: float, out: IO[str] | None = None) -> Watched:
    """Shows the run until it ends. Returns its last state."""
    stream = out or sys.stdout
    return (_redraw if stream.isatty() else _print_changes)(watcher, interval_seconds, stream)


def _redraw(watcher: RunWatcher, interval_seconds: float, stream: IO[str]) -> Watched:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)

    def view(watched: Watched) -> Text:
        size = shutil.get_terminal_size()
        return Text("\n".join(status_lines(watched, size.columns - 1, size.lines - 1)), no_wrap=True)

    with Live(console=console, auto_refresh=False) as live:
        while True:
            watched = watcher.look()
            live.update(view(watched), refresh=True)
            if watched.state.is_end:
                return watched
            time.sleep(interval_seconds)


def _print_changes(watcher: RunWatcher, interval_seconds: float, stream: IO[str]) -> Watched:
    last_change: tuple[object, ...] = ()
    last_line, last_time = "", 0.0
    while True:
        watched = watcher.look()
        stage = watched.live.get("stage", {})
        change = (watched.state, stage.get("label"), stage.get("done"), len(watched.rows), watched.stage)
        line = status_line(watched)
        if change != last_change or (line != last_line and time.monotonic() - last_time >= LINE_SECONDS):
            stream.write(line + "\n")
            stream.flush()
            last_change, last_line, last_time = change, line, time.monotonic()
        if watched.state.is_end:
            return watched
        time.sleep(interval_seconds)
