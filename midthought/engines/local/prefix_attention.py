"""Attention of single queries whose keys have a common prefix: the prefix is read once for all rows of a group.

Reading keys and values takes most of the time of a decoding step. Does not depend on slots, episodes or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MIN_PREFIX_TOKENS = 256
"""Minimum number of shared tokens for which computing a group separately is faster."""
MIN_GROUP_ROWS = 4


class Group(NamedTuple):
    """Rows `start:end` of a batch, whose first `num_tokens` keys and values are the same; 0 if no common prefix is known."""

    start: int
    end: int
    num_tokens: int


def find_groups(num_common: Sequence[int]) -> list[Group]:
    """Returns groups that cover all rows, in order; empty if no rows share enough tokens.

    Args:
        num_common: length of the common prefix of each row and the row before it, in tokens; 0 for the first.

    >>> find_groups([0, 500, 500, 480, 3])
    [Group(start=0, end=4, num_tokens=480), Group(start=4, end=5, num_tokens=0)]
    """
    groups: list[Group] = []
    start = 0
    for end in range(1, len(num_common) + 1):
        if end < len(num_common) and num_common[end] >= MIN_PREFIX_TOKENS:
            continue
        if end - start >= MIN_GROUP_ROWS:
            groups.append(Group(start, end, min(num_common[start + 1 : end])))
        elif groups and not groups[-1].num_tokens:
            groups[-1] = Group(groups[-1].start, end, 0)
        else:
            groups.append(Group(start, end, 0))
        start = end
    return groups if any(group.num_tokens for group in groups) else []


def attend_in_groups(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, groups: Sequence[Group]
) -> Tensor:
    """Returns `[n, kv_heads, repeats, head_dim]`.

    Args:
        query: `[n, kv_heads, repeats, head_dim]`; `keys`, `values`: `[n, kv_heads, length, head_dim]`.
        mask: `[n, 1, 1, length]`, added to the scores.
        groups: cover all `n` rows.
    """
    query = query * scale
    attended = []
    for start, end, num_tokens in groups:
        rows = slice(start, end)
        its_mask = None if mask is None else mask[rows]
        attended.append(_attend_group(query[rows], keys[rows], values[rows], its_mask, num_tokens))
    return torch.cat(attended)


def _attend_group(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, num_tokens: int) -> Tensor:
    """Uses the first row's prefix for all rows; later keys and values are each row's own."""
    scores = query @ keys[:, :, num_tokens:].transpose(2, 3)
    if num_tokens:
        of_prefix = _by_row(_by_head(query) @ keys[0, :, :num_tokens].transpose(1, 2), len(query))
        scores = torch.cat([of_prefix, scores], dim=-1)
    if mask is not None:
        scores += mask
    weights = scores.softmax(-1)
    attended = weights[..., num_tokens:] @ values[:, :, num_tokens:]
    if num_tokens:
        attended += _by_row(_by_head(weights[..., :num_tokens]) @ values[0, :, :num_tokens], len(query))
    return attended


def _by_head(rows: Tensor) -> Tensor:
    """Reshapes `[n, kv_heads, repeats, C]` to `[kv_heads, n · repeats, C]`."""
    return rows.transpose(0, 1).flatten(1, 2)


def _by_row(heads: Tensor, num_rows: int) -> Tensor:
    """Inverse of `_by_head`."""
    return heads.unflatten(1, (num_rows, -1)).transpose(0, 1)
