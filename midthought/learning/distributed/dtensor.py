"""Tensors that may lie in parts on several ranks (DTensors of `sharding`): whole ones from them, and back.

Any other tensor stays as it is. Knows no model.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_sharded(model: Any) -> bool:
    return hasattr(model, "set_gradient_divide_factor")


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the parts of all ranks, which all call this; itself where it is whole."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy that lies as `like` does: on its device, and where that is in parts (and this is not), this rank's part."""
    moved = tensor.to(like.device, copy=True)
    if not hasattr(like, "full_tensor") or hasattr(moved, "full_tensor"):
        return moved
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)
