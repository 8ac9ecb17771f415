"""The learning rate over the optimizer steps of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from midthought.config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class TrainingSchedule:
    """The optimizer steps at which a linear or cosine learning-rate schedule ends."""

    total_steps: int | None = None
    """Steps of the policy. None: the run has no known end, which only the schedule `constant` allows."""
    critic_total_steps: int | None = None
    """Steps of the critic, which also learns during the critic warm-up. None: `total_steps`."""

    @classmethod
    def from_config(cls, training: TrainingConfig, num_iters: int) -> Self:
        """Returns the schedule of PPO that ends with iteration `num_iters`."""
        steps = training.ppo_epochs * -(-training.batch_size // training.mini_batch_size)
        num_waiting = training.num_critic_warmup_iters
        return cls(total_steps=max(num_iters - num_waiting, 0) * steps, critic_total_steps=num_iters * steps)


NO_END = TrainingSchedule()


def learning_rate_factor(step: int, training: TrainingConfig, total_steps: int | None) -> float:
    """Returns the factor of the peak learning rate at a module's own optimizer step `step` (from 0).

    Linear warm-up `(step + 1) / warmup_steps`, then constant, or a linear or cosine decay to 0 at
    `total_steps`. Raises ValueError if a decay has no `total_steps`.
    """
    if step < training.warmup_steps:
        return (step + 1) / training.warmup_steps
    if training.lr_schedule == "constant":
        return 1.0
    if total_steps is None:
        raise ValueError(f"lr_schedule={training.lr_schedule!r} needs total_steps; set it, or use 'constant'")
    done = min(1.0, (step - training.warmup_steps) / max(1, total_steps - training.warmup_steps))
    return 1.0 - done if training.lr_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
