"""Whole runs of a recipe, small, in a process of their own, so that tests can kill them; and what they left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_SMALL = [
    "inference.deterministic=true",
    "model.hidden_size=64",
    "model.num_layers=2",
    "model.num_heads=2",
    "training.num_train_iters=4",
    "training.batch_size=8",
    "training.mini_batch_size=4",
    "training.validate_every=2",
    "checkpoint.save_interval=1",
]
PODCAST = [
    *_SMALL,
    "inference.max_tokens=48",
    "model.vocab_size=600",
    "questions.num_train=40",
    "questions.num_test=8",
    "questions.num_test_no_memory=4",
    "training.num_validation_questions=4",
    "warmup.num_steps=24",
    "warmup.batch_tokens=512",
    "evaluation.sampled=false",
]
FEEDBACK = [
    *_SMALL,
    "inference.max_tokens=120",
    "problems.num_train=40",
    "problems.num_validation=4",
    "problems.num_test=6",
    "training.group_size=2",
    "training.overlong_buffer_tokens=100",  # so that rewards differ within groups, though all answers are wrong
    "sft.num_steps=24",
    "sft.batch_tokens=512",
]
SETTINGS = {"podcast": PODCAST, "feedback": FEEDBACK}


def start(recipe: str, run: Path, *words: str) -> subprocess.Popen[bytes]:
    """`midthought train RECIPE --run RUN …` with one thread."""
    command = [sys.executable, "-m", "midthought.cli", "train", recipe, "--run", str(run), "--quiet", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end, which must be a good one."""
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()


def whole(recipe: str, run: Path, *words: str) -> Path:
    """A run with the recipe's small settings, from its beginning to its end; its folder."""
    finish(start(recipe, run, *SETTINGS[recipe], *words))
    return run


def stop_at(process: subprocess.Popen[bytes], run: Path, num_lines: int, how: signal.Signals) -> int:
    """Send the signal once the metrics have so many lines; the exit code."""
    file, deadline = run / "metrics.jsonl", time.monotonic() + 400
    while not file.exists() or len(file.read_bytes().splitlines()) < num_lines:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1].decode()
        time.sleep(0.005)
    process.send_signal(how)
    process.communicate(timeout=300)
    return process.returncode


def metrics(run: Path, *stages: str) -> list[dict[str, Any]]:
    """Lines of the metrics, of these stages alone where any are named; times left out."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [_without_times(row) for row in rows if not stages or row["stage"] in stages]


def trajectories(run: Path) -> list[dict[str, Any]]:
    """Episodes that are shown, times left out."""
    rows = [json.loads(line) for line in (run / "trajectories.jsonl").read_text().splitlines()]
    return [_without_times(row) | {"events": list(map(_without_times, row["events"]))} for row in rows]


def weights(run: Path, name: str = "policy") -> dict[str, Any]:
    """The tensors of a policy that the run exported, by name."""
    from safetensors.torch import load_file

    return load_file(run / name / "model.safetensors")


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith("time/")}
