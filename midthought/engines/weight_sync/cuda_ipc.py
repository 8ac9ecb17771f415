"""Handles of tensors in a GPU's memory: another process on the same GPU opens them and reads the memory without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

Handle = tuple[Callable[..., Tensor], tuple[Any, ...]]
"""A function and the arguments with which the other process opens a tensor, as torch's `reduce_tensor` returns them."""


class TensorHandles(Protocol):
    """Makes handles of tensors for another process."""

    def device_id(self, tensor: Tensor) -> str:
        """Returns the name of the tensor's device that all processes use."""
        ...

    def handle(self, tensor: Tensor) -> Handle:
        """Returns a handle. The tensor must stay alive and unchanged until the other process has read it."""
        ...

    def before_sending(self, tensor: Tensor) -> None:
        """Waits until this tensor and the others on its device have their final values."""
        ...

    def after_reading(self) -> None:
        """Releases memory that only the other process kept."""
        ...


class CudaHandles:
    """CUDA IPC handles. Implements `TensorHandles`."""

    def device_id(self, tensor: Tensor) -> str:
        import torch

        return str(torch.cuda.get_device_properties(tensor.device).uuid)

    def handle(self, tensor: Tensor) -> Handle:
        from torch.multiprocessing.reductions import reduce_tensor

        handle: Handle = reduce_tensor(tensor)
        return handle

    def before_sending(self, tensor: Tensor) -> None:
        import torch

        torch.cuda.synchronize(tensor.device)

    def after_reading(self) -> None:
        import torch

        torch.cuda.ipc_collect()
