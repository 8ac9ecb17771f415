"""A process that is killed while it saves leaves the checkpoint before, and everything that belongs to it."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from command_process import FORKS
from saving_process import save_forever

from midthought.config import CheckpointConfig
from midthought.learning.checkpoint import step_of
from midthought.models.pretrained import load_model
from midthought.report.run_folder import RunFolder, require_intact_run
from midthought.trainer.checkpoint import CheckpointManager


def killed_after(run: Path, seconds: float) -> None:
    """Runs `save_forever` until these seconds after its first new line, then kills it."""
    log = run / "metrics.jsonl"
    before = log.read_bytes() if log.exists() else b""
    process: Any = FORKS.Process(target=save_forever, args=(str(run),))
    process.start()
    deadline = time.monotonic() + 120
    while not log.exists() or log.read_bytes() == before:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.slow
def test_100_kills_of_a_process_while_it_saves_damage_nothing(tmp_path, caplog):
    run, draw, last = tmp_path / "run", random.Random(0), 0
    for _ in range(100):
        killed_after(run, draw.uniform(0, 0.5))
        require_intact_run(run)
        folder = RunFolder(run)
        with caplog.at_level(logging.WARNING):
            newest = CheckpointManager(folder, "ppo", CheckpointConfig()).newest()
        assert caplog.text == ""
        step = step_of(newest) if newest is not None else 0
        assert step >= last
        rows = [json.loads(line) for line in folder.metrics_path.read_text().splitlines()[:step]]
        assert [row["step"] for row in rows] == list(range(1, step + 1))
        if (run / "policy").exists():
            load_model(run / "policy")
        last = step
    assert last
