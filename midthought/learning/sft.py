"""The warm-up: supervised steps on demonstrations, which are Trajectories like any other. Knows no task and no tool."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from midthought.learning.batch import PPOBatch
from midthought.learning.learner import Learner
from midthought.types import Trajectory

OnStep = Callable[[int, Mapping[str, float]], None]


def bfloat16_is_fast() -> bool:
    """Whether this machine multiplies bfloat16 in hardware: then supervised steps are computed in it."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return bool(torch.backends.cpu.get_cpu_capability() != "DEFAULT" and torch.cpu._is_avx512_bf16_supported())


def run_sft(
    learner: Learner,
    demonstrate: Callable[[int], Sequence[Trajectory]],
    *,
    start: int,
    num_steps: int,
    pad_token_id: int,
    mixed_precision: bool,
    on_step: OnStep,
    deadline: float | None = None,
) -> None:
    """Optimizer steps `start` to `num_steps`, each on `demonstrate(step)`; `on_step(steps taken, metrics)` after each.

    With `mixed_precision` the forward and backward passes run under bfloat16 autocast; weights stay as they are.
    `deadline` (of `time.monotonic`) ends it earlier.
    """
    for step in range(start, num_steps):
        if deadline is not None and time.monotonic() >= deadline:
            return
        began = time.perf_counter()
        batch = PPOBatch.from_trajectories(demonstrate(step), pad_token_id=pad_token_id, demonstrations=True)
        with torch.autocast(learner.device.type, dtype=torch.bfloat16, enabled=mixed_precision):
            metrics = learner.sft_step(batch)
        seconds = time.perf_counter() - began
        on_step(step + 1, {**metrics, "time/seconds": seconds, "time/tokens_per_second": batch.num_tokens / seconds})
