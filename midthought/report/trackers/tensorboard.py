"""TensorBoard: one run per stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midthought.report.trackers import TrackedRun, Tracker


class TensorBoardTracker(Tracker):
    """One TensorBoard run per stage, a folder in `tensorboard/` of the run folder, created when first needed."""

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._path = run.path / "tensorboard"
        self._writers: dict[str, Any] = {}

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if stage not in self._writers:
            self._open(stage)
        for name, value in metrics.items():
            self._writers[stage].add_scalar(name, value, step)
        self._writers[stage].flush()

    def restart_from(self, next_steps: Mapping[str, int]) -> None:
        self.close()
        for folder in sorted(self._path.iterdir()) if self._path.exists() else ():
            if folder.is_dir():
                self._open(folder.name, next_steps.get(folder.name, 0))  # TensorBoard drops this step and later ones

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _open(self, stage: str, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writers[stage] = SummaryWriter(str(self._path / stage), purge_step=purge_step)
