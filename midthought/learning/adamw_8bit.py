"""AdamW with moments in 8 bits, from bitsandbytes, the library that transformers, TRL and Unsloth use for it.

Each moment is one byte per weight, quantized in blocks with one float32 scale each; moments of tensors below 4,096 weights
stay in float32. Source: Dettmers et al. 2022 (arXiv 2110.02861), section 2. Runs on GPUs and on a CPU.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from midthought.references import optional


def adamw_8bit(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Creates the optimizer; every group has its options. Raises MissingExtraError if bitsandbytes is not installed."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns about 4-bit kernels, which are not used here
    created: torch.optim.Optimizer = optional("bitsandbytes.optim", "adamw-8bit").AdamW8bit(groups)
    return created


def restored(moments: Mapping[str, Tensor], optimizer: Any, device: torch.device) -> dict[str, Any]:
    """Returns the state of one parameter from its saved fields, and the tables that map 8 bits to numbers."""
    state: dict[str, Any] = {
        field: int(tensor) if field == "step" else tensor.to(device, copy=True) for field, tensor in moments.items()
    }
    if "absmax1" in state:
        tables = optimizer.name2qmap
        state |= {"qmap1": tables["dynamic"].to(device), "qmap2": tables["udynamic"].to(device)}
    return state
