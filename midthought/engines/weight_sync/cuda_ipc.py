"""Handles of tensors in a GPU's memory: another process on the same GPU opens them and reads the memory without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

Handle = tuple[Callable[..., Tensor], tuple[Any, ...]]
"""A function and the arguments with which the other process opens a tensor, as torch's `reduce_tensor` returns them."""


class CudaHandles:
    """Makes CUDA IPC handles of tensors for another process."""

    def device_id(self, tensor: Tensor) -> str:
        """Returns the name of the tensor's device that all processes use."""
        import torch

        return str(torch.cuda.get_device_properties(tensor.device).uuid)

    def handle(self, tensor: Tensor) -> Handle:
        """Returns a handle. The tensor must stay alive and unchanged until the other process has read it."""
        from torch.multiprocessing.reductions import reduce_tensor

        handle: Handle = reduce_tensor(tensor)
        return handle

    def before_sending(self, tensor: Tensor) -> None:
        """Waits until this tensor and the others on its device have their final values."""
        import torch

        torch.cuda.synchronize(tensor.device)

    def after_reading(self) -> None:
        """Releases memory that only the other process kept."""
        import torch

        torch.cuda.ipc_collect()
