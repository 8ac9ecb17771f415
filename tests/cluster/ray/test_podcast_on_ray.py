"""The podcast recipe with its PPO's episodes on a Ray worker: the same run as in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("lancedb")
SHORT = [
    "inference.deterministic=true",
    "inference.max_tokens=48",
    "model.hidden_size=64",
    "model.num_layers=2",
    "model.num_heads=2",
    "model.vocab_size=600",
    "questions.num_train=40",
    "questions.num_test=8",
    "questions.num_test_no_memory=4",
    "training.num_validation_questions=4",
    "training.num_train_iters=2",
    "training.batch_size=8",
    "training.mini_batch_size=4",
    "training.validate_every=2",
    "warmup.num_steps=24",
    "warmup.batch_tokens=512",
    "evaluation.sampled=false",
]


def metrics(run: Path, *words: str) -> list[dict[str, Any]]:
    """Of a whole run with these settings, times left out."""
    command = [sys.executable, "-m", "midthought.cli", "train", "podcast", "--run", str(run), "--quiet", *SHORT, *words]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


@pytest.mark.slow
def test_a_run_with_one_worker_is_the_run_without(tmp_path: Path) -> None:
    here, far = metrics(tmp_path / "here"), metrics(tmp_path / "far", "ray.use_ray=true")
    assert far == here
    assert [row["stage"] for row in far].count("ppo") == 2
    assert (tmp_path / "far" / "report.html").is_file()
