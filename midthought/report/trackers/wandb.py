"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midthought.config.references import optional
from midthought.report.trackers import TrackedRun, Tracker


class WandbTracker(Tracker):
    """One W&B run per run folder, started by the first metric; every stage has its own step (`ppo/step`).

    W&B's own settings decide whether and where data is sent (`WANDB_MODE=offline` keeps it in the run folder).
    """

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._wandb = optional("wandb", "wandb")
        self._opened: Any = None

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if self._opened is None:
            self._opened = self._wandb.init(
                project=self.run.project,
                name=self.run.name,
                id=self.run.run_id,
                dir=str(self.run.path),
                config=self.run.settings,
                resume="allow",
            )
        self._opened.log({**{f"{stage}/{name}": value for name, value in metrics.items()}, f"{stage}/step": step})

    def close(self) -> None:
        if self._opened is not None:
            self._opened.finish()
            self._opened = None
