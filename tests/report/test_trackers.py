"""Trackers: every library gets the same record under the same names, a failing one is left out, and a resumed run is one run."""

import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from midthought.errors import MissingExtraError, SettingsError
from midthought.report.run_folder import RunFolder
from midthought.report.trackers import TRACKERS, Tracker

RECORD = {"reward/mean": 0.5, "tool/find parcel/raised": 2.0, "loss": float("nan")}
LOGGED = {"ppo/reward/mean": [(3, 0.5), (4, 0.5)], "ppo/tool/find parcel/raised": [(3, 2.0), (4, 2.0)]}
"""By name: (step, value). A value that is not finite is left out."""


def log_and_resume(path: Path, tracker: str) -> None:
    """Two processes of one run."""
    for step in (3, 4):
        with RunFolder(path, trackers=[tracker], project="tides") as folder:
            folder.write_config("training:\n  seed: 7\n")
            folder.log("ppo", step, RECORD)


@pytest.fixture
def mlflow_store(tmp_path, monkeypatch) -> str:
    pytest.importorskip("mlflow", reason="needs mlflow: make test-all")
    pytest.importorskip("sqlalchemy", reason="a local store of mlflow needs sqlalchemy: make test-all")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store := f"sqlite:///{tmp_path / 'mlflow.db'}")
    return store


def test_mlflow_has_the_record(tmp_path, mlflow_store):
    from mlflow import MlflowClient

    log_and_resume(tmp_path / "run", "mlflow")
    client = MlflowClient(mlflow_store)
    (run,) = client.search_runs([client.get_experiment_by_name("tides").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params) == ("run", "FINISHED", {"training.seed": "7"})
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    assert {name: [(each.step, each.value) for each in values] for name, values in histories.items()} == LOGGED


def test_trackio_has_the_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "store")
    log_and_resume(tmp_path / "run", "trackio")
    (name,) = SQLiteStorage.get_runs("tides")
    rows = SQLiteStorage.get_logs("tides", name)
    found = {metric: [(row["step"], row[metric]) for row in rows] for metric in rows[0] if "/" in metric}
    assert name.startswith("run-") and found == LOGGED
    assert capsys.readouterr().out == ""


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
    assert (tmp_path / "run" / "tracker_run_id").read_text().strip() in file.name


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_without_its_package_the_remedy_is_named_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'midthought\[{name}\]'"):
        RunFolder(tmp_path / "run", trackers=[name])
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


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("wandbb", "Did you mean 'wandb'?"), (f"{__name__}:RECORD", "no subclass of"), ("a.b:C", "no module")],
)
def test_an_unknown_tracker_is_refused(tmp_path, name, remedy):
    with pytest.raises(SettingsError, match=remedy):
        RunFolder(tmp_path / "run", trackers=[name])


def test_your_own_tracker_is_named_by_its_module(tmp_path, caplog):
    name = f"{__name__}:Broken"
    with caplog.at_level(logging.WARNING), RunFolder(tmp_path / "run", trackers=[name]) as folder:
        folder.log("ppo", 1, RECORD)
        assert not caplog.records
        folder.log("ppo", 2, RECORD)
    assert f"the tracker {name} failed" in caplog.text
