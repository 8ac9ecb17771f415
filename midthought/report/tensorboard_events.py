"""Metrics as TensorBoard events, one run of curves per stage, without torch. Nothing here reads them back."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardEvents:
    """Writers below `path`, one folder per stage, each opened when it is first needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writers: dict[str, Any] = {}

    def add(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Add one scalar per metric at `step`; those that are not finite are left out."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in metrics.items() if math.isfinite(value)
        ]
        self._writer(stage).add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def forget_from(self, next_steps: Mapping[str, int]) -> None:
        """Tell TensorBoard that each stage starts again at its step in `next_steps`; a stage without one, at 0."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        if not self.path.exists():
            return
        for stage in sorted(folder.name for folder in self.path.iterdir() if folder.is_dir()):
            restart = Event(
                wall_time=time.time(),
                step=next_steps.get(stage, 0),
                session_log=SessionLog(status=SessionLog.START),
            )
            self._writer(stage).add_event(restart)
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
