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

MIN_SPEEDUP = 1.1
"""bfloat16 is chosen if it is at least this many times as fast as float32: it rounds more, and times vary by some per cent."""
_MAX_ROUNDS = 3
_MAX_SECONDS = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionChoice:
    """The shortest time of the operation in each precision; infinite if it cannot be computed in it."""

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
    """Compares the shortest times of `compute` in float32 and in bfloat16.

    It is called up to three times in each precision, alternately, after one call of each that prepares kernels and memory
    and is not counted. After 1.5 seconds no second or third round of calls starts.
    A precision in which `compute` raises RuntimeError (no kernel for this processor, out of memory) is not chosen. Raises
    that error if both fail.
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

    began = clock()
    measure("float32"), measure("bfloat16")
    if len(errors) == 2:
        raise errors["float32"]
    rounds: list[tuple[float, float]] = []
    while not rounds or (len(rounds) < _MAX_ROUNDS and clock() - began < _MAX_SECONDS):
        rounds.append((measure("float32"), measure("bfloat16")))
    float32_seconds, bfloat16_seconds = map(min, zip(*rounds, strict=True))
    return PrecisionChoice(float32_seconds=float32_seconds, bfloat16_seconds=bfloat16_seconds)
