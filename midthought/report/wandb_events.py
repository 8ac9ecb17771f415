"""Metrics to Weights & Biases, beside TensorBoard. Loads wandb only where a project is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midthought.errors import MissingExtraError


class WandbEvents:
    """One W&B run for a run folder, begun with the first metric; every stage has its own step (`ppo/step`).

    A resumed run goes on with the same W&B run. Where and whether anything is sent is W&B's business
    (`WANDB_MODE=offline` keeps it in the run folder). Raises MissingExtraError where wandb is not installed.
    """

    def __init__(self, path: Path, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtraError("wandb", "wandb") from None
        self._wandb: Any = wandb
        self._path = path
        self._project = project
        self._run: Any = None

    def add(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Log the finite ones as `stage/name`."""
        if self._run is None:
            self._run = self._wandb.init(
                project=self._project, name=self._path.name, id=self._path.name, dir=str(self._path), resume="allow"
            )
        values = {f"{stage}/{name}": value for name, value in metrics.items() if math.isfinite(value)}
        self._run.log({**values, f"{stage}/step": step})

    def close(self) -> None:
        """Send what is left."""
        if self._run is not None:
            self._run.finish()
            self._run = None
