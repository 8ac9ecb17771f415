"""Micro-batches: every row once, within the budget, few of them, always alike."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midthought.learning.micro_batching import group_by_length, pack_first_fit, split_by_rows, split_by_tokens

LENGTHS = st.lists(st.integers(2, 50), min_size=1, max_size=30)


@given(LENGTHS, st.integers(1, 120))
def test_every_row_stands_once_and_no_part_is_above_the_budget_but_for_single_rows(lengths, max_tokens):
    lengths = torch.tensor(lengths)
    parts = pack_first_fit(lengths, max_tokens)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(lengths)))
    assert all(len(rows) == 1 or int(lengths[rows].sum()) <= max_tokens for rows in parts)
    two_smallest = sorted(int(lengths[rows].sum()) for rows in parts)[:2]
    assert len(parts) == 1 or sum(two_smallest) > max_tokens
    assert len(parts) <= len(group_by_length(lengths, max_tokens))


@given(LENGTHS, st.integers(1, 12))
def test_shared_out_by_tokens_no_part_has_more_than_one_row_too_many(lengths, num_parts):
    lengths = torch.tensor(lengths)
    parts = split_by_tokens(lengths, num_parts)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(lengths)))
    assert len(parts) == min(num_parts, len(lengths)) == len(split_by_rows(lengths, num_parts))
    totals = [int(lengths[rows].sum()) for rows in parts]
    shortest_in_the_fullest = int(lengths[parts[totals.index(max(totals))]].min())
    assert max(totals) - min(totals) <= shortest_in_the_fullest


@pytest.mark.parametrize(
    ("cut", "number", "expected"),
    [
        (pack_first_fit, 10, [[1, 2], [4, 0], [3]]),
        (group_by_length, 10, [[1], [4], [0, 2], [3]]),
        (split_by_tokens, 2, [[1, 2, 3], [4, 0]]),
        (split_by_rows, 2, [[1, 4, 0], [2, 3]]),
    ],
)
def test_worked_by_hand(cut, number, expected):
    assert [rows.tolist() for rows in cut(torch.tensor([4, 7, 3, 3, 6]), number)] == expected
