"""The podcast recipe with its PPO's episodes on a Ray worker: the same run as in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import metrics, whole

from benchmarks.service import served

pytest.importorskip("ray")
pytest.importorskip("lancedb")
SHORT = ["training.num_train_iters=2", "checkpoint.save_interval=10"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole("podcast", tmp_path_factory.mktemp("here") / "run", *SHORT)


@pytest.mark.slow
def test_a_worker_asks_a_memory_that_is_served_and_the_run_is_the_same(here: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    with served(here / "memory") as service:
        far = whole("podcast", tmp_path / "far", *SHORT, "ray.use_ray=true", f"memory.path={service.url}")
    assert metrics(far) == metrics(here)
    assert not (far / "memory").exists()
