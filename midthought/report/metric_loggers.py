"""Writes metrics to TensorBoard and Weights & Biases. Does not read them back."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midthought.errors import MissingExtraError


class TensorBoardLogger:
    """One TensorBoard run per stage, a folder below `path`, opened when first needed. Does not import torch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writers: dict[str, Any] = {}

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Writes one scalar per metric at `step`; non-finite ones are left out."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in metrics.items() if math.isfinite(value)
        ]
        self._writer(stage).add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def restart_from(self, next_steps: Mapping[str, int]) -> None:
        """Tells TensorBoard that each stage restarts at its step in `next_steps`; a stage without one, at 0."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        if not self.path.exists():
            return
        for stage in sorted(folder.name for folder in self.path.iterdir() if folder.is_dir()):
            restart = SessionLog(status=SessionLog.START)
            step = next_steps.get(stage, 0)
            self._writer(stage).add_event(Event(wall_time=time.time(), step=step, session_log=restart))
            self._writer(stage).flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, stage: str) -> Any:
        if stage not in self._writers:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            folder = self.path / stage
            folder.mkdir(parents=True, exist_ok=True)
            self._writers[stage] = EventFileWriter(str(folder))
        return self._writers[stage]


class WandbLogger:
    """One W&B run per run folder, started by the first metric; every stage has its own step (`ppo/step`).

    A resumed run continues the same W&B run. W&B's own settings decide whether and where data is sent
    (`WANDB_MODE=offline` keeps it in the run folder). Raises MissingExtraError if wandb is not installed.
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

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the finite ones as `stage/name`."""
        if self._run is None:
            self._run = self._wandb.init(
                project=self._project, name=self._path.name, id=self._path.name, dir=str(self._path), resume="allow"
            )
        values = {f"{stage}/{name}": value for name, value in metrics.items() if math.isfinite(value)}
        self._run.log({**values, f"{stage}/step": step})

    def close(self) -> None:
        """Sends the remaining data."""
        if self._run is not None:
            self._run.finish()
            self._run = None
