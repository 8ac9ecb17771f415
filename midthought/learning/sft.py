"""Supervised warm-up on demonstrations, given as Trajectories. Does not depend on a task or a tool."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.run_checks import SupervisedChecks
from midthought.models.precision import Precision, PrecisionChoice, faster_precision
from midthought.types import Trajectory

OnStep = Callable[[int, Mapping[str, float]], None]


_MAX_MEASURED_TOKENS, _MEASURED_FLOPS = 4096, 2.5e11
"""Tokens and floating-point operations of a measured pass, at most. It is repeated eight times."""


def run_sft(
    learner: Learner,
    demonstrate: Callable[[int], Sequence[Trajectory]],
    *,
    start: int,
    num_steps: int,
    mixed_precision: bool | None,
    on_step: OnStep,
    on_precision: Callable[[PrecisionChoice], None] = lambda choice: None,
    deadline: float | None = None,
) -> None:
    """Takes optimizer steps `start` to `num_steps`, each on `demonstrate(step)`; `on_step(steps taken, metrics)` after each.

    With `mixed_precision` the forward and backward passes run under bfloat16 autocast; weights stay as they are. None: if
    that is faster on the first step's demonstrations, and the weights are float32; `on_precision` receives the measurement.
    `deadline` (of `time.monotonic`) ends it earlier. Raises `TrainingStoppedError` if `SupervisedChecks` stops the run.
    """
    checks = SupervisedChecks()
    if mixed_precision is None and next(learner.policy.parameters()).dtype != torch.float32:
        mixed_precision = False
    for step in range(start, num_steps):
        if deadline is not None and time.monotonic() >= deadline:
            return
        began = time.perf_counter()
        batch = TokenBatch.from_trajectories(demonstrate(step), demonstrations=True)
        if mixed_precision is None:
            choice = measure_precision(learner, batch)
            mixed_precision = choice.precision == "bfloat16"
            on_precision(choice)
            began = time.perf_counter()
        with torch.autocast(learner.device.type, dtype=torch.bfloat16, enabled=mixed_precision):
            metrics = learner.sft_step(batch)
        seconds = time.perf_counter() - began
        checks.after_step(step + 1, metrics)
        on_step(step + 1, {**metrics, "time/seconds": seconds, "time/tokens_per_second": batch.num_tokens / seconds})


def measure_precision(learner: Learner, batch: TokenBatch) -> PrecisionChoice:
    """Compares the forward and backward passes of a supervised step in float32 and under bfloat16 autocast, in turn.

    They run on one micro-batch of at most about 4,096 tokens, 300 for 135 million parameters. Weights and optimizer stay as
    they are.
    """
    num_parameters = sum(parameter.numel() for parameter in learner.policy.parameters())
    affordable = max(256, int(_MEASURED_FLOPS / (6 * num_parameters)))
    num_tokens = min(learner.training.max_micro_batch_tokens, _MAX_MEASURED_TOKENS, affordable)
    few = batch.select(batch.micro_batch_rows(num_tokens, packed=learner.is_packed)[0])

    def compute(precision: Precision) -> None:
        with torch.autocast(learner.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            learner.sft_gradients(few)
        if learner.device.type == "cuda":
            torch.cuda.synchronize(learner.device)

    return faster_precision(compute)
