"""The podcast recipe with its PPO's episodes on a Ray worker: the same run as in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import metrics, whole

pytest.importorskip("ray")
pytest.importorskip("lancedb")
SHORT = ["training.num_train_iters=2", "checkpoint.save_interval=10"]


@pytest.mark.slow
def test_a_run_with_one_worker_is_the_run_without(tmp_path: Path) -> None:
    here = whole("podcast", tmp_path / "here", *SHORT)
    far = whole("podcast", tmp_path / "far", *SHORT, "ray.use_ray=true")
    assert metrics(far) == metrics(here)
    assert len(metrics(far, "ppo")) == 2
    assert (far / "report.html").is_file()
