"""Memory of a device, copies to it, and its Triton kernels: they can be imported only where Triton is installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import numpy as np
import torch

from midthought.models.memory import machine_bytes

ASSUMED_BYTES = 8 * 2**30
"""Assumed memory of a machine that does not report it."""
DEVICES = {"cuda"}
"""Types of devices that have the kernels."""


def memory_bytes(device: torch.device) -> int:
    """Returns the free memory of a GPU as its driver reports it, or all memory of this machine or container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return machine_bytes() or ASSUMED_BYTES


def to_device(numbers: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copies numbers to a device. The host does not wait for the work that a GPU still has: from other than pinned memory it
    would."""
    tensor = torch.from_numpy(numbers)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def kernels_of(device: torch.device, module: str) -> Any:
    """Returns a module of this package, `triton_decoder` or `triton_sampling`; None for other devices and without Triton. Triton
    computes on the current GPU, so there are none for another one."""
    if device.type not in DEVICES or (
        device.type == "cuda" and device.index not in (None, torch.cuda.current_device())
    ):
        return None
    return _imported(module)


@functools.cache
def _imported(module: str) -> Any:
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module(f"midthought.engines.local.{module}")
