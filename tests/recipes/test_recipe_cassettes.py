"""Whole runs of both recipes, recorded and replayed: bit for bit, also without the engine and after kill -9 while recording."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from small_runs import FEEDBACK, finish, metrics, start, stop_at, trajectories, weights, whole
from torch import equal

TAUGHT = {"podcast": ["warmup.num_steps=150"], "feedback": ["sft.num_steps=250"]}
"""Enough steps for a policy that calls its tool."""
DEAD_SERVER = [
    "inference.backend=vllm",
    "inference.base_url=[http://127.0.0.1:9]",
    "inference.served_model_name=x",
    "training.rollout_correction=none",  # `auto` is another value with servers
]


def assert_same(run: Path, other: Path) -> None:
    """Whether all that the runs have learned, measured and shown is the same, times left out."""
    assert metrics(run) == metrics(other)
    assert trajectories(run) == trajectories(other)
    for name in ("warmup", "policy"):
        one, two = weights(run, name), weights(other, name)
        assert one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, other)]
    measured = ("seconds", "peak_rss", "bfloat16")
    kept = [{key: row[key] for key in row if not any(word in key for word in measured)} for row in summaries]
    assert kept[0] == kept[1]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["podcast", "feedback"])
def test_a_deterministic_run_is_replayed_bit_for_bit_with_its_engine(recipe: str, tmp_path: Path) -> None:
    words = [*TAUGHT[recipe], "cassette.completions=false"]
    first = whole(recipe, tmp_path / "first", *words, f"cassette.record={tmp_path / 'calls'}")
    assert_same(first, whole(recipe, tmp_path / "again", *words, f"cassette.replay={tmp_path / 'calls'}"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["podcast", "feedback"])
def test_any_run_is_replayed_bit_for_bit_from_its_completions_without_servers(recipe: str, tmp_path: Path) -> None:
    words, calls = [*TAUGHT[recipe], "inference.deterministic=false"], tmp_path / "calls"
    first = whole(recipe, tmp_path / "first", *words, f"cassette.record={calls}")
    kinds = [json.loads(line).get("kind") for path in calls.rglob("*.jsonl") for line in path.open(encoding="utf-8")]
    assert kinds.count("tool") > 1
    assert_same(first, whole(recipe, tmp_path / "again", *words, *DEAD_SERVER, f"cassette.replay={calls}"))


@pytest.mark.slow
def test_a_run_that_was_killed_while_it_recorded_and_resumed_is_replayed_whole(tmp_path: Path) -> None:
    calls, run = tmp_path / "calls", tmp_path / "first"
    process = start("feedback", run, *FEEDBACK, f"cassette.record={calls}")
    stop_at(process, calls, 1, signal.SIGKILL, file_name="train-000002.jsonl")
    finish(start("feedback", run, *FEEDBACK, f"cassette.record={calls}", "--resume"))
    assert_same(run, whole("feedback", tmp_path / "again", f"cassette.replay={calls}"))
