"""Trackers: every library gets the same record under the same names, a failing one is left out, and a resumed run is one run."""

import logging
import sys
import time
from collections.abc import Mapping

import pytest

from midthought.errors import MissingExtraError, SettingsError
from midthought.report.run_folder import RunFolder
from midthought.report.trackers import TRACKERS, Tracker

RECORD = {"reward/mean": 0.5, "tool/find parcel/raised": 2.0, "loss": float("nan")}


@pytest.mark.slow
def test_wandb_has_the_record_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with RunFolder(tmp_path / "run", trackers=["wandb"], project="tides") as folder:
        folder.log("ppo", 3, RECORD)
    (file,) = (tmp_path / "run").rglob("*.wandb")
    deadline = time.monotonic() + 60  # W&B's own process may still be writing
    while b"ppo/step" not in (written := file.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"ppo/reward/mean" in written and b"0.5" in written and b"ppo/step" in written
    assert b"ppo/tool/find parcel/raised" in written and b"ppo/loss" not in written
    assert b"ppo/*" in written  # charts have the stage's step as their x-axis: a step that is logged again is one place
    assert (tmp_path / "run" / "tracker_run_id").read_text().strip() in file.name


def test_without_its_package_the_remedy_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'midthought\[wandb\]'"):
        RunFolder(tmp_path / "run", trackers=["wandb"])
    assert not (tmp_path / "run").exists()


class Broken(Tracker):
    """Fails at its second record."""

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if step > 1:
            raise ConnectionError("no route to\nthe server")


def test_a_tracker_that_fails_is_left_out_with_one_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(TRACKERS, "broken", Broken)
    with caplog.at_level(logging.WARNING), RunFolder(tmp_path / "run", trackers=["broken", "tensorboard"]) as folder:
        for step in (1, 2, 3):
            folder.log("ppo", step, RECORD)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "the tracker broken failed" in warning and "no route to the server" in warning
    assert [row["step"] for row in folder.metrics.read()] == [1, 2, 3]
    assert next((folder.tensorboard_path / "ppo").glob("events*")).stat().st_size > 250


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"Did you mean 'wandb'\?"):
        RunFolder(tmp_path / "run", trackers=["wandbb"])
