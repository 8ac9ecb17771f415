"""A process that logs and saves without a pause, to be killed."""

from __future__ import annotations

from pathlib import Path

import torch

from midthought.config import CheckpointConfig, create_default_config
from midthought.learning.learner import Learner
from midthought.models.pretrained import save_model
from midthought.models.small_model import make_policy, make_tokenizer
from midthought.report.run_folder import RunFolder
from midthought.trainer.checkpoint import CheckpointManager


def save_forever(folder: str) -> None:
    """Continues from the newest checkpoint. Every step is logged, changes the settings, and is saved; every third the policy."""
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(["red blue green"] * 20, 300)
    policy = make_policy(tokenizer, hidden_size=32, num_layers=1, num_heads=2, max_length=64, seed=0)
    learner = Learner(policy, None, None, create_default_config(preset="tiny").training)
    run = RunFolder(Path(folder)).begin(resume=True).create(resume=True)
    checkpoints = CheckpointManager(run, "ppo", CheckpointConfig())
    newest, step = checkpoints.newest(), 0
    if newest is None:
        run.forget_after({"num_metric_lines": 0, "num_trajectory_lines": 0})
    else:
        step = int(checkpoints.restore(learner, tokenizer, newest, "stage")["step"])
    while True:
        step += 1
        run.log("ppo", step, {"reward": step / 7})
        run.add_trajectories([{"task_id": str(step)}])
        run.write_config(f"step: {step}\n")
        checkpoints.save(learner, tokenizer, step, {"stage": "ppo"})
        if step % 3 == 0:
            save_model(policy, tokenizer, run.path / "policy", in_run=True)
