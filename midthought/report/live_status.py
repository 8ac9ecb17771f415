"""`live.json`: what a run is doing now, written while a stage runs, so that another process can watch it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from midthought.activity import ACTIVITY
from midthought.atomic_files import atomic_path
from midthought.regular_files import read_json_object
from midthought.report.json_lines import json_value
from midthought.report.progress import Progress
from midthought.report.run_folder import RunFolder

FILE_NAME = "live.json"
INTERVAL_SECONDS = 1.0


class LiveStatus:
    """Writes `live.json` of a run folder every second while a stage runs, and once at its end.

    A file system that refuses does not disturb the run.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._path = run.path / FILE_NAME

    @contextmanager
    def stage(self, progress: Progress) -> Iterator[None]:
        """Follows a stage; its end is `done`, `stopped` (Ctrl-C) or `failed` with the error."""
        is_over = threading.Event()

        def follow() -> None:
            while not is_over.wait(INTERVAL_SECONDS):
                self._write(progress, "running")

        ACTIVITY.reset()
        self._write(progress, "running")
        thread = threading.Thread(target=follow, name="midthought-live", daemon=True)
        thread.start()
        state, reason = "done", ""
        try:
            yield
        except BaseException as error:
            state = "stopped" if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit) else "failed"
            reason = "" if state == "stopped" else f"{type(error).__name__}: {error}"
            raise
        finally:
            is_over.set()
            thread.join()
            self._write(progress, state, reason)

    def _write(self, progress: Progress, state: str, error: str = "") -> None:
        status = {
            "time": time.time(),
            "pid": os.getpid(),
            "state": state,
            "error": error[:2000],
            "stage": {
                "label": progress.label,
                "done": progress.done,
                "total": progress.total,
                "unit": progress.unit,
                "seconds": progress.seconds,
                "counts": progress.counts(),
                "seconds_left": progress.seconds_left,
            },
            "activity": ACTIVITY.to_dict(),
        }
        if not (self._run.path.is_dir() and self._run.is_present):
            return
        try:
            with atomic_path(self._path) as partial:
                partial.write_text(
                    json.dumps(json_value(status), ensure_ascii=False), encoding="utf-8", errors="replace"
                )
        except OSError:
            return


def read_live(run_path: Path) -> dict[str, Any]:
    """Returns what `LiveStatus` wrote last; empty if there is nothing that can be read."""
    try:
        return read_json_object(run_path / FILE_NAME)
    except (OSError, ValueError):
        return {}
