"""Assigns rows to micro-batches by length: longest first, equal lengths in their order, so the result is deterministic."""

from __future__ import annotations

import heapq

import torch
from torch import Tensor


def pack_first_fit(lengths: Tensor, max_tokens: int) -> list[Tensor]:
    """Returns parts of at most `max_tokens` tokens; a longer row is a part of its own. Each row goes to the first part it fits.

    First fit decreasing: at most 11/9 of the fewest parts, and two thirds of a part (Dósa 2007, doi
    10.1007/978-3-540-74450-4_1).
    """
    cut: list[list[int]] = []
    room: list[int] = []
    for row in _longest_first(lengths).tolist():
        length = int(lengths[row])
        place = next((number for number, left in enumerate(room) if length <= left), len(cut))
        if place == len(cut):
            cut.append([])
            room.append(max_tokens)
        cut[place].append(row)
        room[place] -= length
    return [torch.tensor(rows) for rows in cut]


def group_by_length(lengths: Tensor, max_tokens: int) -> list[Tensor]:
    """The same for padded rows, which all count as much as the longest row of their part: groups rows of similar length."""
    order = _longest_first(lengths)
    cut: list[Tensor] = []
    start = 0
    while start < len(order):
        num_rows = max(1, max_tokens // int(lengths[order[start]]))
        cut.append(order[start : start + num_rows])
        start += num_rows
    return cut


def split_by_tokens(lengths: Tensor, num_parts: int) -> list[Tensor]:
    """Returns `num_parts` parts (at most one per row) of about equal tokens: each row goes to the part with the fewest."""
    cut: list[list[int]] = [[] for _ in range(min(num_parts, len(lengths)))]
    taken = [(0, number) for number in range(len(cut))]
    for row in _longest_first(lengths).tolist():
        num_tokens, number = heapq.heappop(taken)
        cut[number].append(row)
        heapq.heappush(taken, (num_tokens + int(lengths[row]), number))
    return [torch.tensor(rows) for rows in cut]


def split_by_rows(lengths: Tensor, num_parts: int) -> list[Tensor]:
    """Returns `num_parts` parts (at most one per row) with equal numbers of rows: groups rows of similar length."""
    return list(_longest_first(lengths).tensor_split(min(num_parts, len(lengths))))


def _longest_first(lengths: Tensor) -> Tensor:
    return torch.argsort(lengths, descending=True, stable=True)
