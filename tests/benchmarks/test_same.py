"""`python -m benchmarks same`: whatever two runs computed differently is found, and times are not."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.same import differences

RUN: dict[str, Any] = {
    "metrics": {"stage": "ppo", "step": 1, "loss": 0.1, "time/seconds": 2.0},
    "summary": {"after": {"exact_match": 0.5}, "seconds": {"ppo": 3.0}},
    "segments": [{"token_ids": "AQAAAB4C"}],
    "weights": b"\0\1",
}


def write(folder: Path, **changes: Any) -> Path:
    """A run folder with these contents."""
    run = RUN | changes
    (folder / "policy").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json.dumps(run["metrics"]) + "\n")
    (folder / "summary.json").write_text(json.dumps(run["summary"]))
    row = {"arm": "train", "step": 1, "segments": run["segments"]}
    (folder / "trajectories.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "policy" / "model.safetensors").write_bytes(run["weights"])
    return folder


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"metrics": RUN["metrics"] | {"time/seconds": 9.0}, "summary": RUN["summary"] | {"seconds": {}}}, []),
        ({"metrics": RUN["metrics"] | {"loss": 0.1 + 2e-17}}, ["ppo 1: loss"]),
        ({"metrics": {"stage": "ppo", "step": 1}}, ["ppo 1: loss"]),
        ({"summary": {"after": {"exact_match": 0.25}}}, ["summary: after.exact_match"]),
        ({"segments": [{"token_ids": "AQAAAB4D"}]}, ["train 1, episode 1: segments"]),
        ({"weights": b"\0\2"}, ["weights: policy/model.safetensors"]),
    ],
)
def test_a_difference_that_is_no_time_is_found(tmp_path: Path, changes: dict[str, Any], found: list[str]) -> None:
    lines = list(differences(write(tmp_path / "then"), write(tmp_path / "now", **changes)))
    assert [line.startswith(f"{name}: ") for line, name in zip(lines, found, strict=True)] == [True] * len(found)
