"""Supervised warm-up on demonstrations, given as Trajectories. Does not depend on a task or a tool."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from midthought.errors import TrainingStoppedError
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.types import Trajectory

MAX_SKIPPED_STEPS = 5
"""Supervised steps in a row without a finite gradient."""
MAX_DIVERGED_STEPS = 10
"""Supervised steps in a row whose loss is far above the first one."""

OnStep = Callable[[int, Mapping[str, float]], None]


class SupervisedChecks:
    """The checks of supervised steps. Raises `TrainingStoppedError`."""

    def __init__(self) -> None:
        self._num_skipped = self._num_diverged = 0
        self._first_loss = math.nan

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Stops after `MAX_SKIPPED_STEPS` steps in a row without a finite gradient, or `MAX_DIVERGED_STEPS` in a row whose loss
        is more than 1 nat above twice the first finite loss."""
        self._num_skipped = self._num_skipped + 1 if metrics["num_skipped_steps"] else 0
        if self._num_skipped >= MAX_SKIPPED_STEPS:
            raise TrainingStoppedError(
                f"the gradients of {self._num_skipped} supervised steps in a row, up to step {step}, were not finite: loss "
                f"{metrics['loss']:g}, gradient norm {metrics['grad_norm']:g}. The weights are too large or not finite. Lower "
                "the learning rate of the supervised steps"
            )
        if not math.isfinite(self._first_loss):
            self._first_loss = metrics["loss"]
        self._num_diverged = self._num_diverged + 1 if metrics["loss"] > 2 * self._first_loss + 1 else 0
        if self._num_diverged >= MAX_DIVERGED_STEPS:
            raise TrainingStoppedError(
                f"the loss of supervised steps diverges: {metrics['loss']:.3g} nats per token in step {step}, "
                f"{self._first_loss:.3g} in the first one with a finite loss. Lower the learning rate of the supervised steps"
            )


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
