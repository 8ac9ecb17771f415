"""Memory of this machine, limits of the local engine's copies of weights and of sequences, and when a prompt is shared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
MERGED_SHARE = 0.25
"""Maximum share of the free memory for the local engine's merged copies of layers with adapters."""
MAX_COPIED_BYTES = 2**30
"""Maximum size of the copies of a small model's weights that the local engine makes to be faster."""
KEY_SHARE = 8
"""A copy of a token's keys and values takes at most 1/8 of the memory of its activations: every row that attends to a prompt
copies the prompt's keys and values."""
MIN_SAVED = 0.1
"""A group shares its prompt if that saves at least this share of its tokens; below it, the copies cost as much."""


def machine_bytes() -> int | None:
    """Returns the memory of this machine, or the limit of its container if lower. None if the system does not report it."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    text = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.is_file() else "max"
    return min(whole, int(text)) if text.isdigit() else whole


def max_positions(config: Any) -> int | None:
    """Returns the most tokens of a model's sequence; None: any number. With LongRoPE (arXiv 2402.13753) those before its
    extension: a longer sequence changes the angles of all tokens that are computed with it, so cached keys would be wrong."""
    config = config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return int(rope["original_max_position_embeddings"])
    return getattr(config, "max_position_embeddings", None)
