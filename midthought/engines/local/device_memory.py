"""Memory of a device, and copies to it."""

from __future__ import annotations

import numpy as np
import torch

from midthought.models.memory import machine_bytes

ASSUMED_BYTES = 8 * 2**30
"""Assumed memory of a machine that does not report it."""


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
