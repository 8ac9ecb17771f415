"""trackio: a local tracker with a dashboard (`trackio show`), or a Hugging Face Space."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from midthought.config.references import optional
from midthought.report.trackers import TrackedRun, Tracker


class TrackioTracker(Tracker):
    """One trackio run per run folder, started by the first metric, named after the folder and the run's id.

    trackio's own settings choose the storage (`TRACKIO_DIR`, `TRACKIO_SPACE_ID`, `TRACKIO_SERVER_URL`). What it prints is
    dropped.
    """

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._trackio = optional("trackio", "trackio")
        self._opened: Any = None

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if self._opened is None:
            with redirect_stdout(io.StringIO()):
                self._opened = self._trackio.init(
                    project=self.run.project,
                    name=f"{self.run.name}-{self.run.run_id}",
                    config=self.run.settings,
                    resume="allow",
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        self._opened.log({f"{stage}/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        if self._opened is not None:
            with redirect_stdout(io.StringIO()):
                self._opened.finish()
            self._trackio.context_vars.current_run.set(None)  # trackio would finish it again at exit, and print that
            self._opened = None
