"""Assigns rows to micro-batches by length: longest first, equal lengths in their order, so the result is deterministic. Finds the
prompts that the rows of a group share, and the rows that a micro-batch should keep together for that.

A forward pass computes such a prompt once, as a row of its own, whose keys and values the group's rows attend to (`forward`,
`attention`). Does not depend on a model.
"""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from midthought.models.memory import KEY_SHARE, MIN_SAVED


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


def shared_lengths(token_ids: Tensor, cu_seqlens: Tensor, is_wanted: Tensor, groups: Tensor) -> Tensor:
    """Returns how many first tokens each row shares with its group: [B] int64, equal for the rows of a group.

    They are equal in all rows of the group, and nothing is predicted from them (`is_wanted` [N]): each row computes the token
    that its first policy token is predicted from. 0 if a row is alone in its group, or if sharing would not pay.
    """
    lengths = cu_seqlens.diff()
    numbers = torch.arange(len(lengths), device=lengths.device)
    group = torch.unique(groups, return_inverse=True)[1]
    num_groups = int(group.max()) + 1
    leader = numbers.new_full((num_groups,), len(lengths)).scatter_reduce(0, group, numbers, "amin")[group]
    row = numbers.repeat_interleave(lengths)
    position = torch.arange(len(token_ids), device=row.device) - cu_seqlens[row]
    of_leader = (cu_seqlens[leader[row]] + position).clamp(max=len(token_ids) - 1)
    is_equal = (position < lengths[leader[row]]) & (token_ids == token_ids[of_leader])
    end = torch.where(is_equal & ~is_wanted, lengths[row], position)
    of_row = lengths.scatter_reduce(0, row, end, "amin")
    of_group = lengths.new_full((num_groups,), len(token_ids)).scatter_reduce(0, group, of_row, "amin")
    num_rows = torch.bincount(group, minlength=num_groups)
    num_tokens = torch.zeros_like(num_rows).scatter_add(0, group, lengths)
    pays = of_group * (num_rows - 1) >= MIN_SAVED * num_tokens
    return (of_group * (pays & (num_rows > 1)))[group]


def rows_together(
    lengths: Tensor, shared: Tensor, groups: Tensor, max_tokens: int, at_least: int = 1
) -> tuple[list[Tensor], Tensor]:
    """Returns rows that one micro-batch should compute, and the tokens that each such unit counts as.

    A group that shares a prompt is one unit if it has at most `max_tokens`, otherwise as few as possible; other rows are alone,
    and so are those of a unit that is too small for sharing to pay. Units are halved until there are `at_least` so many. A unit
    counts its prompt once, the other tokens of its rows, and 1/8 of the prompt for each row.
    """
    own = lengths - shared + -(-shared // KEY_SHARE)
    units: list[Tensor] = []
    for group in torch.unique(groups).tolist():
        rows = (groups == group).nonzero()[:, 0]
        prompt = int(shared[rows[0]])
        parts = pack_first_fit(own[rows], max(1, max_tokens - prompt)) if prompt else torch.arange(len(rows)).split(1)
        for part in parts:
            saved, num_tokens = prompt * (len(part) - 1), int(lengths[rows[part]].sum())
            units += [rows[part]] if saved >= MIN_SAVED * num_tokens else rows[part].split(1)
    units.sort(key=lambda rows: int(rows[0]))
    while len(units) < min(at_least, len(lengths)):
        largest = max(range(len(units)), key=lambda number: len(units[number]))
        units[largest : largest + 1] = units[largest].tensor_split(2)
    return units, torch.tensor([int(shared[rows[0]] + own[rows].sum()) for rows in units])
