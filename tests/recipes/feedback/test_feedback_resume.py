"""A run that is killed in the warm-up and in RL and resumed leaves the same figures and weights as one that was not.

In `make test` a run is stopped in `trainer/test_trainer_sft.py` and `trainer/test_checkpoint_manager.py`, a whole job is in
`test_feedback_recipe.py`.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from small_runs import FEEDBACK, finish, metrics, start, stop_at, trajectories, weights, whole

from midthought.report.recorded_episodes import COLUMNS, read_recording

pytestmark = pytest.mark.slow
NUM_SFT, NUM_PPO = 24, 4
RECORDED = "checkpoint.record_episodes=4"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole("feedback", tmp_path_factory.mktemp("whole") / "run", RECORDED)


def test_a_run_killed_in_both_stages_ends_with_the_same_figures_and_weights(
    uninterrupted: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert stop_at(start("feedback", run, *FEEDBACK, RECORDED), run, 13, signal.SIGKILL) == -signal.SIGKILL
    assert 13 <= len(metrics(run)) < NUM_SFT
    assert stop_at(start("feedback", run, "--resume"), run, NUM_SFT + 2, signal.SIGKILL) == -signal.SIGKILL
    assert 0 < len(metrics(run, "ppo")) < NUM_PPO
    finish(start("feedback", run, "--resume"))
    assert metrics(run) == metrics(uninterrupted)
    assert trajectories(run) == trajectories(uninterrupted)
    for name in ("warmup", "policy"):
        one, other = weights(run, name), weights(uninterrupted, name)
        assert one.keys() == other.keys()
        assert all(tensor.equal(other[key]) for key, tensor in one.items()), name
    one, other = (json.loads((each / "summary.json").read_text()) for each in (run, uninterrupted))
    timed = {key for key in one if key.startswith("seconds")} | {"peak_rss_mib", "train_seconds"}
    assert {key: one[key] for key in one.keys() - timed} == {key: other[key] for key in other.keys() - timed}


def test_every_stage_is_recorded(uninterrupted: Path) -> None:
    episodes = [*read_recording(uninterrupted)]
    trained = [each for each in episodes if each.arm == "train"]
    assert [each.step for each in trained] == [step for step in range(1, NUM_PPO + 1) for _ in range(4)]
    held_out = [each for each in episodes if each.arm == "validation"]
    assert len(held_out) == 2 * 4
    assert {"before", "before.sampled", "after", "after.sampled", "after.none"} <= {each.arm for each in episodes}
    segments = [segment for each in trained for segment in each.segments or ()]
    columns = {name: np.concatenate([each.columns[name][each.in_loss] for each in segments]) for name in COLUMNS}
    assert len(columns["ratios"]) and np.isfinite(columns["advantages"]).all() and (columns["ratios"] > 0).all()
    assert np.abs(columns["logprobs"] - columns["sampled_logprobs"]).max() < 1e-3


def test_every_stage_left_its_lines_rl_moved_the_policy_and_a_healthy_run_reports_nothing(uninterrupted: Path) -> None:
    assert [len(metrics(uninterrupted, stage)) for stage in ("sft", "ppo", "validation")] == [NUM_SFT, NUM_PPO, 2]
    warmed_up, trained = weights(uninterrupted, "warmup"), weights(uninterrupted)
    assert any(not tensor.equal(warmed_up[name]) for name, tensor in trained.items())
    assert not (uninterrupted / "findings.jsonl").exists()


OLDER = [
    "training.max_staleness=2",
    "inference.in_flight=1.5",
    "inference.max_segment_length=12",
    "training.num_train_iters=5",
]


def test_a_killed_run_goes_on_with_its_open_episodes(tmp_path: Path) -> None:
    unbroken, run = whole("feedback", tmp_path / "whole", *OLDER), tmp_path / "run"
    killed = stop_at(start("feedback", run, *FEEDBACK, *OLDER), run, 26, signal.SIGKILL)
    assert killed == -signal.SIGKILL
    finish(start("feedback", run, "--resume"))
    first, second = (
        [{key: value for key, value in row.items() if "_older_" not in key} for row in metrics(each)]
        for each in (run, unbroken)  # a new process has no weights of older versions
    )
    assert first == second
    assert trajectories(run) == trajectories(unbroken)
    assert max(row["staleness/mean"] for row in metrics(run, "ppo")) > 0
