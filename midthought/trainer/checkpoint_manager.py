"""Saves the checkpoints of one stage of a run, and deletes old ones."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midthought.config import CheckpointConfig
from midthought.learning.actor_critic import AnyLearner
from midthought.learning.checkpoint import (
    keep_last,
    latest,
    load_checkpoint,
    save_checkpoint,
    step_of,
    step_path,
    step_paths,
)
from midthought.report.run_folder import RunFolder


class CheckpointManager:
    """Saves to `RUN/checkpoints/STAGE/checkpoints/step_000001`, …, and deletes what the settings do not keep.

    A checkpoint also stores how many lines `metrics.jsonl` and `trajectories.jsonl` had, so that `forget_after` can drop
    the lines that an interrupted process wrote after it.
    """

    def __init__(self, run: RunFolder, stage: str, settings: CheckpointConfig) -> None:
        self._run = run
        self._folder = run.checkpoints_path / stage
        self._settings = settings

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint. None: there is none yet."""
        return latest(self._folder)

    def before(self, step: int) -> Path | None:
        """The newest checkpoint of an earlier step. None: there is none."""
        return next((path for path in reversed(step_paths(self._folder)) if step_of(path) < step), None)

    def path(self, step: int) -> Path:
        """Path of the checkpoint of this step."""
        return step_path(self._folder, step)

    def save(
        self,
        learner: AnyLearner,
        tokenizer: Any,
        step: int,
        state: Mapping[str, Any],
        *,
        path: Path | None = None,
        best: int = 0,
    ) -> Path:
        """Writes a checkpoint and returns its path.

        `path` None: writes to the run folder, then deletes checkpoints of later steps (left by a run that was resumed from an
        earlier step), and all but the last `checkpoint.keep_last_n` and step `best` (0: none).
        """
        counts = {
            "num_metric_lines": self._run.num_metric_lines,
            "num_trajectory_lines": self._run.num_trajectory_lines,
        }
        target = path or self.path(step)
        save_checkpoint(target, learner, tokenizer=tokenizer, state={**state, "step": step, **counts})
        if path is None:
            self._delete_old(step, best)
        return target

    def _delete_old(self, step: int, best: int) -> None:
        for later in step_paths(self._folder):
            if later.name > self.path(step).name:
                shutil.rmtree(later)
        kept_best = self.path(best) if self._settings.keep_best and best else None
        keep_last(self._folder, self._settings.keep_last_n, kept_best)

    def restore(self, learner: AnyLearner, path: Path) -> dict[str, Any]:
        """Takes the learner back to a checkpoint of this run, drops later lines, and returns the checkpoint's state."""
        checkpoint = load_checkpoint(path)
        checkpoint.restore(learner)
        self.forget_after(checkpoint.state)
        return checkpoint.state

    def forget_after(self, counts: Mapping[str, Any]) -> None:
        """Drops the metrics and trajectories that were written after a checkpoint with these counts."""
        self._run.keep_metric_lines(min(counts["num_metric_lines"], self._run.num_metric_lines))
        self._run.keep_trajectory_lines(min(counts["num_trajectory_lines"], self._run.num_trajectory_lines))
