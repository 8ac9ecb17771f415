"""TensorBoard: one run per stage."""

from __future__ import annotations

import io
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midthought.report.trackers import TrackedRun, Tracker

_EVENTS = re.compile(r"events\.out\.tfevents\.(\d+)\.")


class TensorBoardTracker(Tracker):
    """One TensorBoard run per stage, a folder in `tensorboard/` of the run folder, created when first needed. Does not import
    torch.

    Events are written at once and in the caller's thread, so that an error of the disk is raised there.
    """

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._path = run.path / "tensorboard"
        self._files: dict[str, Path] = {}

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(stage, step=step, summary=Summary(value=values))

    def restart_from(self, next_steps: Mapping[str, int]) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        if not self._path.exists():
            return
        for stage in sorted(folder.name for folder in self._path.iterdir() if folder.is_dir()):
            restart = SessionLog(status=SessionLog.START)
            self._write(stage, step=next_steps.get(stage, 0), session_log=restart)

    def close(self) -> None:
        self._files.clear()

    def _write(self, stage: str, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        written, now = io.BytesIO(), time.time()
        if stage not in self._files:
            self._files[stage] = self._new_file(self._path / stage)
            RecordWriter(written).write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        RecordWriter(written).write(Event(wall_time=now, **content).SerializeToString())
        with self._files[stage].open("ab") as file:
            file.write(written.getvalue())

    def _new_file(self, folder: Path) -> Path:
        """Returns the path of a file that TensorBoard, which sorts by name, reads after those in the folder, also if the clock
        was set back."""
        folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(match[1]) for file in folder.iterdir() if (match := _EVENTS.match(file.name))]
        number = max([int(time.time()), *(number + 1 for number in numbers)])
        return folder / f"events.out.tfevents.{number:010d}.{socket.gethostname()}.{os.getpid()}"
