"""Whole runs of both recipes, recorded and replayed: bit for bit, also without the engine and after kill -9 while recording."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from small_runs import FEEDBACK, finish, metrics, start, stop_at, trajectories, weights, whole
from torch import equal


def assert_same(run: Path, other: Path, *stages: str) -> None:
    """Whether all that the runs have learned, measured and shown is the same, times left out."""
    assert metrics(run) == metrics(other)
    assert trajectories(run) == trajectories(other)
    for name in ("warmup", "policy"):
        one, two = weights(run, name), weights(other, name)
        assert one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, other)]
    kept = [
        {key: row[key] for key in row if "seconds" not in key and "peak" not in key and "bfloat16" not in key}
        for row in summaries
    ]
    assert kept[0] == kept[1]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["podcast", "feedback"])
def test_a_deterministic_run_is_replayed_bit_for_bit_with_its_engine(recipe: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    first = whole(recipe, tmp_path / "first", f"cassette.record={calls}", "cassette.completions=false")
    again = whole(recipe, tmp_path / "again", f"cassette.replay={calls}", "cassette.completions=false")
    assert_same(first, again)


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "stage"), [("podcast", "warmup"), ("feedback", "sft")])
def test_a_run_that_is_not_deterministic_is_replayed_bit_for_bit_from_its_completions(
    recipe: str, stage: str, tmp_path: Path
) -> None:
    words = ["inference.deterministic=false", f"{stage}.mixed_precision=false"]
    calls = tmp_path / "calls"
    first = whole(recipe, tmp_path / "first", *words, f"cassette.record={calls}")
    dead = ["inference.backend=vllm", "inference.base_url=[http://127.0.0.1:9]", "inference.served_model_name=x"]
    again = whole(recipe, tmp_path / "again", *words, *dead, f"cassette.replay={calls}")
    assert_same(first, again)


@pytest.mark.slow
def test_a_run_that_was_killed_while_it_recorded_and_resumed_is_replayed_whole(tmp_path: Path) -> None:
    calls, run = tmp_path / "calls", tmp_path / "first"
    process = start("feedback", run, *FEEDBACK, f"cassette.record={calls}")
    stop_at(process, calls, 1, signal.SIGKILL, file_name="train-000002.jsonl")
    finish(start("feedback", run, *FEEDBACK, f"cassette.record={calls}", "--resume"))
    assert_same(run, whole("feedback", tmp_path / "again", f"cassette.replay={calls}"))
