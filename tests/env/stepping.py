"""Environments that tests step and train on."""

from __future__ import annotations

import math
import random
from typing import Any

from midthought import Trainer, create_default_config
from midthought.env.environment import BaseEnvironment
from midthought.env.episode import call_blocking


class Echo(BaseEnvironment):
    """Says what it was told and pays its length; `end` ends it. Begins with a number drawn from the seed."""

    def reset(self, seed: int | None = None) -> str:
        self.start = random.Random(seed).randrange(10**9)
        return f"start {self.start}"

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        return f"heard {action!r}", float(len(action)), action == "end", {"success": action == "end"}

    def get_prompt_prefix(self) -> str:
        return "Say something."


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
