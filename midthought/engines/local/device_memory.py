"""Memory of a device."""

from __future__ import annotations

import torch

from midthought.plan.hardware import machine_bytes

ASSUMED_BYTES = 8 * 2**30
"""Assumed memory of a machine that does not report it."""


def memory_bytes(device: torch.device) -> int:
    """Returns the free memory of a GPU as its driver reports it, or all memory of this machine or container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return machine_bytes() or ASSUMED_BYTES
