"""Measures whether an operation is faster in float32 or bfloat16 on this machine.

Processor flags do not predict this: on a Xeon with `avx512_bf16`, 30 steps of a warm-up took 35 s in bfloat16 and 11 s in
float32.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "bfloat16"]

MIN_SPEEDUP = 1.2
"""bfloat16 is chosen if it is at least this many times as fast as float32: it rounds more, and times vary."""
NUM_ROUNDS = 3
"""Odd, so that one round is the median."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionChoice:
    """The time of the operation in each precision; infinite if it cannot be computed in it."""

    float32_seconds: float
    bfloat16_seconds: float

    @property
    def speedup(self) -> float:
        """How many times as fast bfloat16 is."""
        return self.float32_seconds / self.bfloat16_seconds

    @property
    def precision(self) -> Precision:
        return "bfloat16" if self.speedup >= MIN_SPEEDUP else "float32"

    def __str__(self) -> str:
        if math.isinf(self.bfloat16_seconds):
            return "float32 (bfloat16 cannot be computed here)"
        if math.isinf(self.float32_seconds):
            return "bfloat16 (float32 cannot be computed here)"
        times = f"{1000 * self.float32_seconds:.0f} ms in float32, {1000 * self.bfloat16_seconds:.0f} ms in bfloat16"
        return f"{self.precision} (measured: bfloat16 is {self.speedup:.2f} times as fast; {times})"


def faster_precision(
    compute: Callable[[Precision], object], clock: Callable[[], float] = time.perf_counter
) -> PrecisionChoice:
    """Compares the times of `compute` in float32 and in bfloat16. Returns the times of the round with the median speedup.

    A round is a call in each precision, one after the other, so that both are slowed by what else the machine does. There are
    `NUM_ROUNDS`, after one that prepares kernels and memory and is not counted. A precision in which `compute` raises
    RuntimeError (no kernel for this processor, out of memory) is not chosen. Raises that error if both fail.
    """
    errors: dict[Precision, RuntimeError] = {}

    def measure(precision: Precision) -> float:
        if precision in errors:
            return math.inf
        began = clock()
        try:
            compute(precision)
        except RuntimeError as error:
            errors[precision] = error
            return math.inf
        return clock() - began

    _, *rounds = [
        PrecisionChoice(float32_seconds=measure("float32"), bfloat16_seconds=measure("bfloat16"))
        for _ in range(1 + NUM_ROUNDS)
    ]
    if len(errors) == 2:
        raise errors["float32"]
    return rounds[-1] if errors else sorted(rounds, key=lambda each: each.speedup)[NUM_ROUNDS // 2]
