"""The recipe with episodes that are carried over: killed in the middle of PPO and gone on with, it is the run that was not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from small_runs import PODCAST, finish, metrics, start, stop_at, trajectories

PARTIAL = [
    *PODCAST,
    "inference.partial_rollouts=true",
    "inference.max_segment_length=12",
    "inference.max_tokens=160",  # with few tokens all episodes are truncated in the same round, and none is carried over
    "inference.partial_over_sampling=2",
    "training.num_train_iters=5",
]


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_episodes_that_it_carried_over(tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    finish(start("podcast", whole, *PARTIAL))
    assert stop_at(start("podcast", run, *PARTIAL), run, 26, signal.SIGKILL) == -signal.SIGKILL
    finish(start("podcast", run, "--resume"))
    assert metrics(run) == metrics(whole)
    assert trajectories(run) == trajectories(whole)
    rows = metrics(run, "ppo")
    assert sum(row["partial/num_resumed"] for row in rows) > 0
    assert max(row["partial/stale_token_share"] for row in rows) > 0
