"""Supervised warm-up on demonstrations, given as Trajectories. Does not depend on a task or a tool."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.run_checks import SupervisedChecks
from midthought.types import Trajectory

OnStep = Callable[[int, Mapping[str, float]], None]


def run_sft(
    learner: Learner,
    demonstrate: Callable[[int], Sequence[Trajectory]],
    *,
    start: int,
    num_steps: int,
    mixed_precision: bool | None,
    on_step: OnStep,
    deadline: float | None = None,
) -> None:
    """Takes optimizer steps `start` to `num_steps`, each on `demonstrate(step)`; `on_step(steps taken, metrics)` after each.

    With `mixed_precision` the forward and backward passes run under bfloat16 autocast; weights stay as they are. None: for
    float32 weights on a GPU. `deadline` (of `time.monotonic`) ends it earlier. Raises `TrainingStoppedError` if
    `SupervisedChecks` stops the run.
    """
    checks = SupervisedChecks()
    if mixed_precision is None:
        weight = next(learner.policy.parameters())
        mixed_precision = weight.device.type == "cuda" and weight.dtype == torch.float32
    for step in range(start, num_steps):
        if deadline is not None and time.monotonic() >= deadline:
            return
        began = time.perf_counter()
        batch = TokenBatch.from_trajectories(demonstrate(step), demonstrations=True)
        with torch.autocast(learner.device.type, dtype=torch.bfloat16, enabled=mixed_precision):
            metrics = learner.sft_step(batch)
        seconds = time.perf_counter() - began
        checks.after_step(step + 1, metrics)
        on_step(step + 1, {**metrics, "time/seconds": seconds, "time/tokens_per_second": batch.num_tokens / seconds})
