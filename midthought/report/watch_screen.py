"""Shows a run while it runs: a view that is redrawn in a terminal, otherwise a line for every change."""

from __future__ import annotations

import shutil
import sys
import time
from typing import IO

from midthought.report.watch import RunWatcher, Watched, status_line, status_lines

LINE_SECONDS = 10.0
"""Without a terminal, a line is also printed after this time, if something has changed."""


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
