"""Measures seconds and peak memory of the phases of a run. Does not depend on a plan, a learner or a file.

On a CUDA device, memory is what PyTorch's allocator holds in this process. On a CPU it is the resident memory of the process;
Linux resets its peak (`/proc/self/clear_refs`), other systems report the peak since the start, which only grows.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from midthought.activity import ACTIVITY

Phase = Literal["sampling", "scoring", "update", "weight_update", "validation", "saving"]
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""What `CLEAR` takes to set the peak of resident memory to the present value (Linux, proc(5))."""


@dataclass(slots=True)
class Measured:
    """Measurements of one phase, over all its calls."""

    calls: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    """Allocated on a CUDA device; resident on a CPU."""
    reserved_bytes: int = 0
    """Reserved by PyTorch's allocator on a CUDA device; 0 on a CPU."""

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            self.calls + other.calls,
            self.seconds + other.seconds,
            max(self.peak_bytes, other.peak_bytes),
            max(self.reserved_bytes, other.reserved_bytes),
        )


class PhaseMeter:
    """Measures phases: `with meter.phase("update"): …`. Without a model, it measures seconds only.

    Cost per phase: below 1 ms, and on a CUDA device a wait for its kernels at the end.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        """`model`: the policy as it was loaded; its device is measured."""
        self.measured: dict[Phase, Measured] = {}
        self.last_seconds: dict[Phase, float] = {}
        """Seconds of each phase's last call."""
        self.device = None if model is None else next(model.parameters()).device
        self.is_resettable = True
        """Whether peaks are of one phase; False: they only grow."""
        self.base_bytes = 0 if model is None else max(0, self._now() - _num_bytes(model))
        """Memory that was held before the model: interpreter and libraries on a CPU."""

    @property
    def is_cuda(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Adds what runs inside to the phase, also if it raises."""
        self._reset()
        began = time.perf_counter()
        try:
            with ACTIVITY.in_phase(name):
                yield
        finally:
            if self.is_cuda:
                torch.cuda.synchronize(self.device)
            seconds = self.last_seconds[name] = time.perf_counter() - began
            found = Measured(1, seconds, *self._peaks())
            self.measured[name] = self.measured.get(name, Measured()) + found

    def _reset(self) -> None:
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.device is not None:
            self.is_resettable = reset_process_peak()

    def _peaks(self) -> tuple[int, int]:
        if self.device is None:
            return 0, 0
        if self.is_cuda:
            return torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)
        return _status("VmHWM") or _highest(), 0

    def _now(self) -> int:
        if self.is_cuda:
            return torch.cuda.memory_allocated(self.device)
        return _status("VmRSS") or _highest()


_peak_before_reset = 0
"""The largest peak that `reset_process_peak` has cleared, in bytes."""


def reset_process_peak() -> bool:
    """Sets the peak of resident memory to the present value. Returns False if the system does not permit it."""
    global _peak_before_reset
    peak = process_peak_bytes()
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError:
        return False
    _peak_before_reset = peak
    return True


def process_peak_bytes() -> int:
    """Returns the peak of resident memory since the process started, whether it was reset or not."""
    return max(_peak_before_reset, _status("VmHWM") or 0, _highest())


def _highest() -> int:
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status(name: str) -> int | None:
    """Returns a figure of `STATUS` in bytes. None: the system has no such file."""
    try:
        lines = STATUS.read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)


def _num_bytes(model: nn.Module) -> int:
    """Returns the bytes of a model's tensors; tied ones count once."""
    tensors = {tensor.data_ptr(): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values())
