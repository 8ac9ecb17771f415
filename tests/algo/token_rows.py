"""Rows as episodes, for functions that take the episode of every token."""

import torch
from torch import Tensor


def rows_of(mask: Tensor) -> Tensor:
    """[B, T] -> [B, T]: the number of the row at each of its tokens."""
    return torch.arange(len(mask))[:, None].expand(mask.shape)
