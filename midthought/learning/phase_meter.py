"""Measures the seconds of the phases of a run, and names the present one to `midthought watch`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

Phase = Literal["sampling", "scoring", "update", "weight_update", "validation", "saving"]


class PhaseMeter:
    """Measures phases: `with meter.phase("update"): …`. On a CUDA device, a phase ends when its kernels have."""

    def __init__(self, model: nn.Module | None = None) -> None:
        """`model`: the policy, whose device is waited for. None: none is."""
        self.last_seconds: dict[Phase, float] = {}
        """Seconds of each phase's last call."""
        self._device = None if model is None else next(model.parameters()).device

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Measures what runs inside, also if it raises."""
        began = time.perf_counter()
        try:
            yield
        finally:
            if self._device is not None and self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self.last_seconds[name] = time.perf_counter() - began
