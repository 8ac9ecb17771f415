"""The recipe's PPO with episodes that a real vLLM samples."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_runs import PODCAST, finish, metrics, start

PYTHON = os.environ.get("MIDTHOUGHT_VLLM_PYTHON")
SERVED = [
    *[word for word in PODCAST if "deterministic" not in word],
    "inference.backend=vllm",
    f"inference.server_python={PYTHON}",
    "inference.max_num_seqs=16",
    "training.learning_rate=1e-3",
]


@pytest.mark.slow
@pytest.mark.skipif(
    not PYTHON, reason="MIDTHOUGHT_VLLM_PYTHON does not name the interpreter of an environment with vLLM"
)
def test_ppo_through_a_server_samples_from_the_weights_that_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    run = tmp_path / "run"
    finish(start("podcast", run, *SERVED))
    rows = metrics(run, "ppo")
    assert len(rows) == 4
    assert [row["logprob_difference_max"] < 1e-2 for row in rows] == [True] * 4
    assert (run / "report.html").is_file()
