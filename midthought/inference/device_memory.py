"""How much memory a device has to give."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def memory_bytes(device: torch.device) -> int:
    """Returns the free memory of a GPU as its driver reports it, or all memory of this machine or container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(whole, int(text)) if text.isdigit() else whole
