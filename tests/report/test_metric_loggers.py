"""W&B: logged metrics reach its file, by stage; without wandb the error names the remedy."""

import sys
import time

import pytest

from midthought.errors import MissingExtraError
from midthought.report.run_folder import RunFolder


def test_metrics_reach_a_run_that_is_kept_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with RunFolder(tmp_path / "run", wandb_project="tides") as folder:
        folder.log("ppo", 3, {"reward/mean": 0.5, "loss": float("nan")})
    (file,) = (tmp_path / "run").rglob("*.wandb")
    deadline = time.monotonic() + 60  # W&B's own process may still be writing
    while b"ppo/step" not in (written := file.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"ppo/reward/mean" in written and b"0.5" in written and b"ppo/step" in written
    assert b"ppo/loss" not in written


def test_without_wandb_the_remedy_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'midthought\[wandb\]'"):
        RunFolder(tmp_path / "run", wandb_project="tides")
    assert not (tmp_path / "run").exists()
