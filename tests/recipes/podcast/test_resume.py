"""A run that is killed or interrupted and resumed leaves the same metrics as one that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SETTINGS = [
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
    "training.num_train_iters=4",
    "training.batch_size=8",
    "training.mini_batch_size=4",
    "training.validate_every=2",
    "warmup.num_steps=24",
    "warmup.batch_tokens=512",
    "checkpoint.save_interval=1",
    "evaluation.sampled=false",
]


def start(run: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "midthought.cli", "train", "podcast", "--run", str(run), "--quiet", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()


def metrics(run: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


def trajectories(run: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (run / "trajectories.jsonl").read_text().splitlines()]
    for row in rows:
        row["events"] = [{k: v for k, v in event.items() if not k.startswith("time/")} for event in row["events"]]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def stop_at(process: subprocess.Popen[bytes], run: Path, num_lines: int, how: signal.Signals) -> int:
    """Send the signal once the metrics have so many lines; the exit code."""
    file, deadline = run / "metrics.jsonl", time.monotonic() + 400
    while not file.exists() or len(file.read_bytes().splitlines()) < num_lines:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1].decode()
        time.sleep(0.005)
    process.send_signal(how)
    process.communicate(timeout=300)
    return process.returncode


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    finish(start(run, *SETTINGS))
    return run


def test_a_run_killed_in_the_warm_up_and_interrupted_in_ppo_ends_with_the_same_metrics(
    uninterrupted: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert stop_at(start(run, *SETTINGS), run, 13, signal.SIGKILL) == -signal.SIGKILL
    assert stop_at(start(run, "--resume"), run, 25, signal.SIGINT) == 130
    assert len(metrics(run)) < len(metrics(uninterrupted))
    finish(start(run, "--resume"))
    assert metrics(run) == metrics(uninterrupted)
    assert trajectories(run) == trajectories(uninterrupted)


def test_every_stage_left_its_lines_and_the_summary_its_keys(uninterrupted: Path) -> None:
    stages = [row["stage"] for row in metrics(uninterrupted)]
    assert {stage: stages.count(stage) for stage in set(stages)} == {"sft": 24, "ppo": 4, "validation": 2}
    summary = json.loads((uninterrupted / "summary.json").read_text())
    required = """before.exact_match before.oracle.exact_match after.exact_match after.tool_off.exact_match
        after.shuffled.exact_match after.oracle.exact_match after.no_memory.exact_match after.constant_guess
        after.call_rate_needed after.call_rate_needless control.exact_match num_questions seconds peak_rss_mib seed"""
    assert not set(required.split()) - summary.keys()
    assert summary["control.exact_match"] is None
    assert summary["num_questions"] == 8
    assert (uninterrupted / "report.html").stat().st_size > 10_000


def test_the_policy_loads_with_any_hugging_face_tool(uninterrupted: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = AutoModelForCausalLM.from_pretrained(uninterrupted / "policy")
    tokenizer = AutoTokenizer.from_pretrained(uninterrupted / "policy")
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Which speaker said it?"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    written = policy.generate(ids, max_new_tokens=4, do_sample=False)
    assert written.shape[1] > ids.shape[1]
