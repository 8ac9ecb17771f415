"""The algorithm on one page runs, and computes what `Trainer` computes."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path

import pytest
import torch

from midthought import Trainer
from midthought.models.small_model import make_policy, make_tokenizer

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("grpo_one_file")


def test_it_runs_from_demonstrations_to_rewards(page, capsys):
    rewards = page.main(["--iterations", "1", "--sft-steps", "3"])
    assert len(rewards) == 1
    assert all(0.0 <= reward <= 1.0 for reward in rewards)
    assert "iteration 1: mean reward" in capsys.readouterr().out


def test_its_step_has_the_loss_and_the_gradient_of_the_trainers_first_step(page):
    tasks = page.make_tasks()
    tokenizer = make_tokenizer([f"{task.prompt} {task.answer}" for task in tasks], 420)
    policy = make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=256, seed=0)
    settings = {
        "num_train_iters": 1,
        "batch_size": 32,
        "mini_batch_size": 32,
        "group_size": 8,
        "max_tokens": 8,
        "clip_ratio": page.CLIP,
    }

    def last_token(trajectory):
        return float(trajectory.token_ids[-1] % 7)

    with Trainer(
        model=policy,
        tokenizer=tokenizer,
        dataset=[{"question": task.prompt, "answer": task.answer} for task in tasks],
        rewards=[last_token],
        algorithm="grpo",
        learning_rate=1e-4,
        kl_loss_coef=0.0,
        progress=False,
        **settings,
    ) as trainer:
        episodes = trainer.rollout().trajectories
        mine = copy.deepcopy(trainer.model)
        metrics = trainer.train_step()
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-4)
    ((loss, norm),) = page.train_step(mine, optimizer, episodes, seed=0)
    assert loss == pytest.approx(metrics["policy_loss"], abs=1e-6)
    assert norm == pytest.approx(metrics["grad_norm"], rel=1e-4)
    assert norm > 0
