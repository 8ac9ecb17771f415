"""Memory of GPUs by name, and the device of this machine."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

from midthought.errors import SettingsError
from midthought.models.memory import machine_bytes

GIB = 2**30
MOSTLY_FREE = 0.85
"""Share of a GPU's memory that is free if no other process computes on it."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device."""

    kind: Literal["cpu", "gpu"]
    name: str
    memory_gib: float | None
    """Free memory of a GPU; total memory of a machine or its container. None: unknown."""
    total_gib: float | None = None
    """Total memory of a GPU, if it differs from the free memory."""

    def __str__(self) -> str:
        known = "memory unknown" if self.memory_gib is None else f"{self.memory_gib:.1f} GiB"
        return f"{self.name} ({known})"

    @property
    def occupied(self) -> str:
        """Returns a sentence with the remedy if other processes hold much of the GPU's memory; else an empty string."""
        if self.memory_gib is None or self.total_gib is None or self.memory_gib >= MOSTLY_FREE * self.total_gib:
            return ""
        held = f"{self.total_gib - self.memory_gib:.1f} of {self.total_gib:.1f} GiB of {self.name}"
        remedy = "end them (nvidia-smi lists them), or use another GPU, e.g. model.device=cuda:1"
        return f"other processes hold {held}: {remedy}"


def find_hardware(device: str) -> Hardware:
    """Returns the hardware of `model.device`; `auto` is the first GPU, or the CPU if there is none."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.partition(":")[0] == "cpu":
        num_bytes = machine_bytes()
        return Hardware("cpu", "this machine's CPU", None if num_bytes is None else num_bytes / GIB)
    try:
        free, total = torch.cuda.mem_get_info(device)
        return Hardware("gpu", torch.cuda.get_device_name(device), free / GIB, total / GIB)
    except (RuntimeError, AssertionError, ValueError):  # another kind of accelerator, or none of this number
        return Hardware("gpu", device, None)


def device_problem(device: str, *, num_gpus: int, cuda_build: str | None, warning: str = "") -> str:
    """Returns why a run cannot use `device` (`auto`, `cpu`, `cuda`, `cuda:1` …), with the remedy; empty if it can.

    `cuda_build`: the CUDA version that torch was built for, None without CUDA. `warning`: torch's, from looking for GPUs.
    """
    if device.partition(":")[0] not in ("auto", "cuda"):
        return ""
    if "driver" in warning and "too old" in warning:
        remedy = "install a newer driver or a torch for an older CUDA, or set model.device=cpu"
        return f"the NVIDIA driver is too old for this torch (CUDA {cuda_build}): {remedy}"
    number = device.partition(":")[2]
    if device == "auto" or (num_gpus and not number) or (number.isdigit() and int(number) < num_gpus):
        return ""
    if cuda_build is None:
        return f"model.device={device}: this torch is built without CUDA; install one with it, or set model.device=cpu"
    if not num_gpus:
        return f"model.device={device}: no GPU is found here; check nvidia-smi and CUDA_VISIBLE_DEVICES, or set model.device=cpu"
    return f"model.device={device}: there are {num_gpus} GPUs here; set model.device to cuda:0 … cuda:{num_gpus - 1}"


def require_device(device: str) -> None:
    """Raises `SettingsError` if this machine lacks the device, or its driver is too old (`device_problem`)."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    words = " ".join(str(each.message) for each in caught)
    if problem := device_problem(device, num_gpus=num_gpus, cuda_build=torch.version.cuda, warning=words):
        raise SettingsError(problem)
