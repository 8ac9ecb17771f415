"""Progress of a run, stored in `progress.json`, from which an interrupted run continues."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from midthought.errors import CheckpointError
from midthought.files.regular import read_json_object
from midthought.report.run_folder import RunFolder

FILE_NAME = "progress.json"
SFT = "warmup"
"""The stage of the supervised steps, and the folder of their policy."""


def process_peak_bytes() -> int:
    """Returns the peak of resident memory since the process started."""
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class RunProgress:
    """Completed stages with their metrics and seconds, and the number of lines of the run's files that belong to them."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._path = run.path / FILE_NAME
        self.stage = ""
        self.from_path: str | None = None
        """`--stage` and `--from` of the start of a recipe's run; a resumed run uses the same. `stage` is empty in other runs."""
        self.is_given = True
        """Whether the run started from a user's model, not from a small one that this run or an earlier one created."""
        self.done: list[str] = []
        self.metrics: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.peak_rss_mib = 0.0
        """Peak resident memory of any process of the run."""
        self.log_position: dict[str, Any] = {"num_metric_lines": 0, "num_trajectory_lines": 0}
        """Position of the logs after the last finished stage (`RunFolder.log_position`)."""

    def load(self) -> None:
        """Reads what an earlier process wrote. Raises `CheckpointError` if there is nothing to continue from."""
        try:
            state = read_json_object(self._path)
            if state.keys() != self._state.keys():
                raise ValueError(f"it does not hold {', '.join(self._state)}")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self._path} cannot be read ({error}); there is no run to go on with") from None
        vars(self).update(state)

    def save(self) -> None:
        self.peak_rss_mib = max(self.peak_rss_mib, process_peak_bytes() / 2**20)
        self._run.write_file(FILE_NAME, json.dumps(self._state, indent=1) + "\n")

    @property
    def _state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the seconds of a stage, also of an interrupted one, to the seconds that earlier processes spent on it."""
        began, before = time.monotonic(), self.seconds.get(stage, 0.0)
        try:
            yield
        finally:
            self.seconds[stage] = before + time.monotonic() - began

    def spent(self) -> dict[str, float]:
        """Returns the seconds of the run without its control arms, the seconds of every stage, and the peak memory."""
        own = (spent for stage, spent in self.seconds.items() if not stage.startswith("arms."))
        by_stage = {f"seconds.{stage}": spent for stage, spent in self.seconds.items()}
        return {"seconds": sum(own), **by_stage, "peak_rss_mib": self.peak_rss_mib}

    def finish(self, stage: str, metrics: dict[str, Any] | None = None) -> None:
        """Marks the stage as done and records its metrics."""
        self.done = [*dict.fromkeys([*self.done, stage])]
        self.log_position = self._run.log_position
        self.metrics |= metrics or {}
        self.save()
