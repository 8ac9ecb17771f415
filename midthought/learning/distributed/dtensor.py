"""Converts tensors that may be sharded over several ranks (DTensors of `fsdp`) to whole tensors, and back.

Any other tensor stays as it is. Does not depend on a model.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_sharded(model: Any) -> bool:
    return hasattr(model, "set_gradient_divide_factor")


def whole(tensor: Tensor) -> Tensor:
    """Gathers the tensor's parts from all ranks, which must all call this. Returns a whole tensor unchanged."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns a copy on the device of `like`. If `like` is sharded and `tensor` is not, returns this rank's part."""
    moved = tensor.to(like.device, copy=True)
    if not hasattr(like, "full_tensor") or hasattr(moved, "full_tensor"):
        return moved
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)
