"""The recipe with what its settings may switch on: adapters, episodes that are carried over, Ray workers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from small_runs import FEEDBACK, finish, metrics, start, stop_at, trajectories, weights, whole

PARTIAL = ["inference.partial_rollouts=true", "inference.max_segment_length=12", "training.num_train_iters=5"]


@pytest.mark.slow
def test_adapters_are_trained_and_become_part_of_both_policies(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    run = whole("feedback", tmp_path / "run", "model.lora_rank=4", "training.num_train_iters=2")
    assert len(metrics(run, "ppo")) == 2
    warmed_up, trained = weights(run, "warmup"), weights(run)
    assert warmed_up.keys() == trained.keys()
    assert not any("lora" in name for name in trained)
    assert any(not tensor.equal(warmed_up[name]) for name, tensor in trained.items())


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_episodes_that_it_carried_over(tmp_path: Path) -> None:
    unbroken, run = whole("feedback", tmp_path / "whole", *PARTIAL), tmp_path / "run"
    killed = stop_at(start("feedback", run, *FEEDBACK, *PARTIAL), run, 26, signal.SIGKILL)
    assert killed == -signal.SIGKILL
    finish(start("feedback", run, "--resume"))
    assert metrics(run) == metrics(unbroken)
    assert trajectories(run) == trajectories(unbroken)
    assert max(row["partial/stale_token_share"] for row in metrics(run, "ppo")) > 0


@pytest.mark.slow
def test_a_run_with_one_ray_worker_is_the_run_without(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    here = whole("feedback", tmp_path / "here", "training.num_train_iters=2")
    far = whole("feedback", tmp_path / "far", "training.num_train_iters=2", "ray.use_ray=true")
    assert metrics(far) == metrics(here)
    assert len(metrics(far, "ppo")) == 2
