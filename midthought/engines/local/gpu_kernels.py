"""Access to the modules of Triton kernels: they can be imported only where Triton is installed, and run on GPUs only."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch

DEVICES = {"cuda"}
"""Types of devices that have the kernels."""


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
