"""Checks of what the public functions get: tensors, masks of any type, one shape."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def as_mask(mask: Tensor, name: str = "mask") -> Tensor:
    """Returns the mask as bool; every number but 0 is True. Raises TypeError if it is no tensor."""
    require_tensors(**{name: mask})
    return mask.bool()


def as_numbers(values: Tensor, name: str) -> Tensor:
    """Returns the values, whole numbers as float32. Raises TypeError if it is no tensor."""
    require_tensors(**{name: values})
    return values if values.is_floating_point() else values.float()


def require_tensors(**given: Any) -> None:
    """Raises TypeError for a value that is neither a tensor nor None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name} is of the type {type(value).__name__}; give a tensor: torch.as_tensor({name})")


def require_one_shape(mask: Tensor, **tensors: Tensor) -> None:
    """Raises ValueError if a tensor has another shape than the mask, because it would be broadcast; TypeError if it is no
    tensor."""
    require_tensors(**tensors)
    for name, tensor in tensors.items():
        if tensor.shape != mask.shape:
            raise ValueError(f"{name} have the shape {list(tensor.shape)}, the mask {list(mask.shape)}; give one shape")
