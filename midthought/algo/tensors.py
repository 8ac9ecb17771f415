"""Checks of what the public functions get (tensors, masks of any type, one shape), and statistics of the scores of an
episode's group, exact for equal scores, whatever their size. Does not know estimators.
"""

from __future__ import annotations

from typing import Any

import torch
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


TIE = 1e-6
"""Scores are equal if they differ by this share of the larger one or less: rewards are float32, so 0.1 + 0.2 is not 0.3."""


def group_statistics(scores: Tensor, groups: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns every row's score minus the mean of its group, the unbiased standard deviation and the size of its group, each [E].
    Only `present` rows are members.

    If all scores of a group are equal, the differences are exactly 0. A group of one has mean 0 and standard deviation 1.
    """
    lowest, highest = group_extremes(scores, groups, present)
    above = torch.where(present & ~is_tie(lowest, highest), scores - lowest, 0.0)  # small numbers: means lose no digits
    member, counts = _members(groups, present, scores)
    means = counts.new_zeros(len(counts)).index_add(0, member, above) / counts.clamp(min=1)
    alone = (counts <= 1)[member]
    centred = torch.where(present, torch.where(alone, scores, above - means[member]), 0.0)
    squares = counts.new_zeros(len(counts)).index_add(0, member, torch.where(alone, 0.0, centred**2))
    deviations = (squares / (counts - 1).clamp(min=1)).sqrt()[member]
    return centred, torch.where(alone, 1.0, deviations), counts[member]


def group_extremes(scores: Tensor, groups: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the lowest and the highest score of every row's group, each [E]. Only `present` rows are members."""
    _, member = torch.unique(groups, return_inverse=True)
    found = scores.new_zeros(int(member.max()) + 1 if len(member) else 0)
    lowest = found.scatter_reduce(0, member[present], scores[present], "amin", include_self=False)
    highest = found.scatter_reduce(0, member[present], scores[present], "amax", include_self=False)
    return lowest[member], highest[member]


def is_tie(one: Tensor, other: Tensor) -> Tensor:
    return torch.isclose(one, other, rtol=TIE, atol=0.0)


def _members(groups: Tensor, present: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the group of every row, numbered from 0, [E], and the size of each group, in the type of the scores, [G]."""
    _, member = torch.unique(groups, return_inverse=True)
    counts = scores.new_zeros(int(member.max()) + 1 if len(member) else 0)
    return member, counts.index_add(0, member, present.to(scores.dtype))
