"""Memory of this machine, and limits of the local engine's copies of weights. The engine and the plan of a run use both."""

from __future__ import annotations

import os
from pathlib import Path

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
MERGED_SHARE = 0.25
"""Maximum share of the free memory for the local engine's merged copies of layers with adapters."""
MAX_COPIED_BYTES = 2**30
"""Maximum size of the copies of a small model's weights that the local engine makes to be faster."""


def machine_bytes() -> int | None:
    """Returns the memory of this machine, or the limit of its container if lower. None if the system does not report it."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    text = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.is_file() else "max"
    return min(whole, int(text)) if text.isdigit() else whole
