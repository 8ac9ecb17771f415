"""TensorBoard: one run per stage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from midthought.report.trackers.tracker import TrackedRun, Tracker, tracker


@tracker("tensorboard")
class TensorBoardTracker(Tracker):
    """One TensorBoard run per stage, a folder in `tensorboard/` of the run folder, opened when first needed. Does not import
    torch."""

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._path = run.path / "tensorboard"
        self._writers: dict[str, Any] = {}

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer(stage).add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def restart_from(self, next_steps: Mapping[str, int]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        if not self._path.exists():
            return
        for stage in sorted(folder.name for folder in self._path.iterdir() if folder.is_dir()):
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

            folder = self._path / stage
            folder.mkdir(parents=True, exist_ok=True)
            self._writers[stage] = EventFileWriter(str(folder))
        return self._writers[stage]
