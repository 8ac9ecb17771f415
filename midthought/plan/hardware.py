"""The device that a run computes on, and the memory that it has there. Knows no model and no settings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from midthought.plan.gpus import GIB

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device."""

    kind: Literal["cpu", "gpu"]
    name: str
    memory_gib: float | None
    """Free memory of a GPU, all memory of a machine (or of its container). None: not known."""

    def __str__(self) -> str:
        known = "memory unknown" if self.memory_gib is None else f"{self.memory_gib:.1f} GiB"
        return f"{self.name} ({known})"


def find_hardware(device: str) -> Hardware:
    """The hardware behind `model.device`; `auto` is the first GPU, or the CPU if there is none."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.partition(":")[0] == "cpu":
        num_bytes = machine_bytes()
        return Hardware("cpu", "this machine's CPU", None if num_bytes is None else num_bytes / GIB)
    try:
        return Hardware("gpu", torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)[0] / GIB)
    except (RuntimeError, AssertionError, ValueError):  # another kind of accelerator, or none of this number
        return Hardware("gpu", device, None)


def machine_bytes() -> int | None:
    """Memory of this machine, or of the container if that may have less. None: the system does not say."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    text = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.is_file() else "max"
    return min(whole, int(text)) if text.isdigit() else whole
