"""The learning rate over the steps of a run."""

from __future__ import annotations

import math

from midthought.learning.settings import LearnerSettings


def learning_rate_factor(step: int, settings: LearnerSettings, total_steps: int | None) -> float:
    """Factor of the peak learning rate at a module's own optimizer step `step` (from 0): a pure function.

    Linear warm-up `(step + 1) / warmup_steps`, then constant, or a linear or cosine decay to `min_learning_rate_ratio` at
    `total_steps`. Raises ValueError if a decay has no `total_steps`.
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return 1.0
    if total_steps is None:
        raise ValueError(f"schedule {settings.schedule!r} needs total_steps; set it, or use 'constant'")
    done = min(1.0, (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps))
    left = 1.0 - done if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return settings.min_learning_rate_ratio + (1.0 - settings.min_learning_rate_ratio) * left
