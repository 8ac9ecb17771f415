"""What a trainer keeps in its run folder: settings, metrics, episodes to be read, checkpoints, the last policy, the report."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.config import ConfigStore, require_allowed
from midthought.env.reasoning import last_answer, matches
from midthought.errors import SettingsError
from midthought.learning.checkpoint import keep_last, latest, step_of, step_path, step_paths
from midthought.report.html import write_report
from midthought.report.run_folder import RunFolder
from midthought.report.trajectory_row import trajectory_row
from midthought.tokenization import Renderer
from midthought.types import Trajectory

_log = logging.getLogger(__name__)

NUM_SHOWN = 8
"""Episodes of an iteration that are kept to be read."""


class CheckpointManager:
    """A run folder, new or gone on with. Checkpoints stand in `checkpoints/ppo/checkpoints/step_000001`, ….

    `newest` is the checkpoint that a resumed run goes on from; None where it begins.
    """

    def __init__(self, path: str | Path, config: ConfigStore, *, resume: bool, allow_changes: bool = False) -> None:
        """Raises `CheckpointError` if a run is there and it is not to be resumed, `OutputPathError` if other files are,
        `SettingsError` if it is resumed with settings that change what is learned, and `allow_changes` is not set."""
        self.run = RunFolder(path)
        self.run.begin(resume=resume)
        self._changes = self.run.settings_changes(config) if resume else []
        try:
            require_allowed(self._changes, allow=allow_changes)
        except SettingsError:
            self.run.unlock()
            raise
        self.newest = latest(self._checkpoints) if resume else None
        self._config = config
        self.run.create(resume=resume)
        if resume and self.newest is None:
            self.forget_after({"num_metric_lines": 0, "num_trajectory_lines": 0})

    @property
    def _checkpoints(self) -> Path:
        return self.run.checkpoints_path / "ppo"

    def begin(self) -> None:
        """Write the settings down, once all that can be wrong with them has been seen."""
        step = step_of(self.newest) if self.newest is not None else 0
        self.run.record_settings(self._config, self._changes, "ppo", step)
        for change in self._changes:
            _log.info("changed at iteration %d: %s", step, change)

    def log(self, stage: str, iteration: int, metrics: Mapping[str, float]) -> None:
        self.run.log(stage, iteration, metrics)

    def show(self, trajectories: Sequence[Trajectory], renderer: Renderer, *, arm: str, iteration: int) -> None:
        """Write the first few episodes down."""
        self.run.add_trajectories(
            trajectory_row(t, renderer.decode, step=iteration, arm=arm, exact_match=is_right(t))
            for t in trajectories[:NUM_SHOWN]
        )

    # -- checkpoints -------------------------------------------------------------------------------------------

    def checkpoint_path(self, iteration: int) -> Path:
        return step_path(self._checkpoints, iteration)

    def clear(self, iteration: int, best: int) -> None:
        """Delete what `checkpoint` in the settings does not keep, and what an abandoned course left after `iteration`."""
        for later in step_paths(self._checkpoints):
            if later.name > self.checkpoint_path(iteration).name:
                shutil.rmtree(later)
        settings = self._config.checkpoint
        kept_best = self.checkpoint_path(best) if settings.keep_best and best else None
        keep_last(self._checkpoints, settings.keep_last_n, kept_best)

    def counts(self) -> dict[str, int]:
        """What a checkpoint stores for `forget_after`."""
        return {
            "num_metric_lines": self.run.num_metric_lines,
            "num_trajectory_lines": self.run.num_trajectory_lines,
        }

    def forget_after(self, counts: Mapping[str, Any]) -> None:
        """Drop the metrics and episodes that were written after a checkpoint with these counts."""
        self.run.keep_metric_lines(min(counts["num_metric_lines"], self.run.num_metric_lines))
        self.run.keep_trajectory_lines(min(counts["num_trajectory_lines"], self.run.num_trajectory_lines))

    def holds(self, path: str | Path) -> bool:
        """Whether a checkpoint lies in this run folder."""
        return Path(path).resolve().is_relative_to(self.run.path.resolve())

    # -- the end -----------------------------------------------------------------------------------------------

    def finish(self, metrics_history: Sequence[Mapping[str, float]]) -> None:
        """Write the summary (the last figures, those of the last validation, the time it all took) and the report."""
        validations = [row for row in self.run.metrics.read() if row["stage"] == "validation"]
        last = {f"validation/{name}": value for name, value in (validations or [{}])[-1].items() if name != "stage"}
        seconds = math.fsum(metrics["time/seconds"] for metrics in metrics_history)
        figures = {"seed": self._config.training.seed, "seconds": seconds}
        self.run.write_summary({**figures, **(metrics_history[-1] if metrics_history else {}), **last})
        self.run.close()
        write_report(self.run.path)


def is_right(trajectory: Trajectory) -> bool | None:
    """Exact match of the answer after the thought; None where the task has no answer to compare with."""
    task = trajectory.task
    return matches(last_answer(trajectory), (task.answer, *task.aliases)) if task.answer else None
