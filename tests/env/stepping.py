"""Environments of other packages, stepped and trained on in tests."""

from __future__ import annotations

import math
from typing import Any

from midthought import Trainer, create_default_config
from midthought.env.environment import BaseEnvironment
from midthought.env.episode import call_blocking


def begin(world: BaseEnvironment, **options: Any) -> str:
    return call_blocking(lambda: world.reset(**options), 30.0, "reset")


def do(world: BaseEnvironment, action: str) -> Any:
    return call_blocking(lambda: world.step(action), 30.0, "step")


def check_training(world: BaseEnvironment) -> None:
    """Two iterations of a small model: rewards are numbers, no reset fails."""
    few = {"num_train_iters": 2, "batch_size": 4, "group_size": 2, "mini_batch_size": 4, "adv_estimator": "grpo"}
    config = create_default_config(training=few, inference={"max_tokens": 24}, environment={"max_steps": 2})
    with Trainer(config, world) as trainer:
        history = trainer.fit()
    assert all(math.isfinite(metrics["reward/mean"]) for metrics in history)
    assert [metrics["env/num_failed_resets"] for metrics in history] == [0.0, 0.0]
