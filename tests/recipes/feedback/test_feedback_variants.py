"""The recipe with what its settings may switch on: adapters, episodes that are carried over, Ray's workers, vLLM."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from small_runs import FEEDBACK, finish, metrics, start, stop_at, trajectories, weights, whole

PYTHON = os.environ.get("MIDTHOUGHT_VLLM_PYTHON")
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
    assert sum(row["partial/num_resumed"] for row in metrics(run, "ppo")) > 0


@pytest.mark.slow
def test_a_run_with_one_ray_worker_is_the_run_without(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    here = whole("feedback", tmp_path / "here", "training.num_train_iters=2")
    far = whole("feedback", tmp_path / "far", "training.num_train_iters=2", "ray.use_ray=true")
    assert metrics(far) == metrics(here)
    assert len(metrics(far, "ppo")) == 2


@pytest.mark.slow
@pytest.mark.skipif(
    not PYTHON, reason="MIDTHOUGHT_VLLM_PYTHON does not name the interpreter of an environment with vLLM"
)
def test_rl_through_a_server_samples_from_the_weights_that_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    served = [
        "inference.deterministic=false",
        "inference.backend=vllm",
        f"inference.server_python={PYTHON}",
        "inference.max_num_seqs=16",
        "training.learning_rate=1e-3",
        "training.batch_size=16",
    ]
    run = whole("feedback", tmp_path / "run", *served)
    rows = metrics(run, "ppo")
    learned_from = [row["logprob_difference_max"] for row in rows if "logprob_difference_max" in row]
    assert (
        len(rows) == 4 and len(learned_from) >= 2
    )  # where all groups are flat nothing is learned, and nothing compared
    assert max(learned_from) < 1e-2
    assert (run / "report.html").is_file()
