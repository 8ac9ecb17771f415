"""TensorBoard shows a run in the order of its steps, also if the clock was set back between two processes."""

from __future__ import annotations

import time

from midthought.report.trackers import TensorBoardTracker, TrackedRun


def test_events_after_the_clock_was_set_back_are_shown_after_the_others(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = TrackedRun(tmp_path, "")
    for step, clock in ((1, 2_000_000_000), (2, 1_700_000_000), (3, 1_700_000_000)):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        TensorBoardTracker(run).log("ppo", step, {"reward": step / 10})
    accumulator = EventAccumulator(str(tmp_path / "tensorboard/ppo"))
    accumulator.Reload()
    assert [event.step for event in accumulator.Scalars("reward")] == [1, 2, 3]
