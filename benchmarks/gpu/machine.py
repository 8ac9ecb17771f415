"""The device that the checks run on: clocks, free memory, measured bandwidth and matmul rate, and the time that is left.

Needs torch alone.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import torch

T = TypeVar("T")


class Machine:
    """A device, and how large the work on it is.

    Args:
        device: `cpu`, `cuda` or `cuda:1`.
        is_tiny: tiny shapes and little work: to see that every check runs. The speeds mean nothing then.
        model_names: keys of `models.SHAPES`, smallest first.
    """

    def __init__(self, device: str, *, is_tiny: bool, model_names: tuple[str, ...]) -> None:
        self.device = torch.device(device)
        self.is_tiny = is_tiny
        self.model_names = model_names
        self.deadline = float("inf")
        """Of the check that runs, on the clock `time.monotonic`."""
        if self.is_cuda:
            self.device = torch.device("cuda", self.device.index or 0)  # most of torch.cuda asks for a number
            torch.cuda.set_device(self.device)

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.is_cuda else "cpu"

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def has_time(self, seconds: float) -> bool:
        """Whether a part that takes so many seconds on a GPU should still begin; tiny shapes take half a second."""
        return self.seconds_left >= self.pick(seconds, 0.5)

    def pick(self, real: T, tiny: T) -> T:
        """How large the work is."""
        return tiny if self.is_tiny else real

    def initialize(self) -> None:
        """Creates the device's context and loads its matmul library; on a GPU that takes seconds."""
        matrix = torch.ones(16, 16, device=self.device)
        torch.mm(matrix, matrix)
        self.synchronize()

    # -- clocks ------------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def seconds_of(self, compute: Callable[[], object], *, num_runs: int = 5, num_warmup: int = 2) -> float:
        """Median seconds of a call that only starts work on the device; on a GPU by its own clock (events)."""
        for _ in range(num_warmup):
            compute()
        self.synchronize()
        return statistics.median(self._event_seconds(compute) for _ in range(num_runs))

    def _event_seconds(self, compute: Callable[[], object]) -> float:
        if not self.is_cuda:
            return self.wall_seconds(compute)[0]
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        compute()
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) / 1000.0

    def wall_seconds(self, compute: Callable[[], T]) -> tuple[float, T]:
        """Seconds of one call, until the device has done its work, and the call's result."""
        self.synchronize()
        began = time.perf_counter()
        result = compute()
        self.synchronize()
        return time.perf_counter() - began, result

    # -- memory ------------------------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """That a check may take, in bytes; on a CPU it is not limited."""
        if not self.is_cuda:
            return 1 << 62
        self.clean()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def clean(self) -> None:
        """Release what is not used any more."""
        gc.collect()
        if self.is_cuda:
            torch.cuda.empty_cache()

    def start_peak(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)

    @property
    def peak_bytes(self) -> int | None:
        """Most bytes allocated at once since `start_peak`; None on a CPU, whose allocator does not count them."""
        return int(torch.cuda.max_memory_allocated(self.device)) if self.is_cuda else None

    @property
    def allocated_bytes(self) -> int | None:
        """Of all tensors on a GPU; None on a CPU, whose allocator does not count them."""
        self.clean()
        return int(torch.cuda.memory_allocated(self.device)) if self.is_cuda else None

    # -- rates -------------------------------------------------------------------------------------------------

    @cached_property
    def bandwidth(self) -> float:
        """Bytes read and written per second by a copy on the device."""
        source = torch.zeros(self.pick(1 << 30, 1 << 23), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2.0 * source.numel() / self.seconds_of(lambda: target.copy_(source), num_runs=10, num_warmup=3)

    @cached_property
    def matmul_rate(self) -> float:
        """Floating-point operations per second of a square bfloat16 matrix product of random numbers."""
        size = self.pick(8192, 256)
        one, other = (torch.randn(size, size, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        result = torch.empty_like(one)
        return 2.0 * size**3 / self.seconds_of(lambda: torch.mm(one, other, out=result), num_runs=10, num_warmup=3)
