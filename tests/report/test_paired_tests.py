"""Paired tests against numbers worked by hand."""

from __future__ import annotations

import math
import random

import pytest

from midthought.report.paired_tests import difference_interval, mcnemar, paired_permutation


def answers(both: int, lost: int, gained: int, neither: int) -> tuple[list[bool], list[bool]]:
    before = [True] * (both + lost) + [False] * (gained + neither)
    return before, [True] * both + [False] * lost + [True] * gained + [False] * neither


def test_mcnemar_is_the_binomial_of_the_changed_answers() -> None:
    found = mcnemar(*answers(10, 1, 5, 4))
    assert found.p_value == pytest.approx(2 * (1 + 6) / 64)  # b + c = 6, min = 1: 2 · (C(6,0) + C(6,1)) / 2^6
    assert (found.num_pairs, found.difference) == (20, 0.2) and "5 wrong→right, 1 right→wrong" in found.name
    assert mcnemar(*answers(3, 2, 2, 1)).p_value == 1.0 and mcnemar(*answers(3, 0, 0, 1)).p_value == 1.0
    assert mcnemar(*answers(0, 0, 600, 900)).p_value == pytest.approx(2**-599, rel=1e-9)
    with pytest.raises(ValueError, match="there is no pair"):
        mcnemar([], [])


def test_the_interval_of_a_difference_of_shares_has_a_width_and_its_symmetry() -> None:
    low, high = difference_interval(20, 12, 2, 16)
    # Newcombe's formula by hand: shares 0.44 and 0.64, Wilson (0.31164, 0.57692) and (0.50139, 0.75862), phi 0.47236.
    shares = (0.44 - 0.311637, 0.758617 - 0.64), (0.576919 - 0.44, 0.64 - 0.501387)
    phi = (20 * 16 - 12 * 2 - 25) / math.sqrt(32 * 18 * 22 * 28)
    by_hand = [math.sqrt(a * a - 2 * phi * a * b + b * b) for a, b in shares]
    assert (low, high) == pytest.approx((-0.2 - by_hand[0], -0.2 + by_hand[1]), abs=2e-4)
    assert difference_interval(20, 2, 12, 16) == pytest.approx((-high, -low))
    low, high = difference_interval(8, 0, 0, 0)
    assert low < -0.3 and high > 0.3


def test_few_signs_are_flipped_in_all_ways_and_many_in_the_same_sample() -> None:
    assert paired_permutation([0.0] * 3, [1.0, 2.0, 3.0]).p_value == pytest.approx(
        2 / 8
    )  # of 8 signs, +++ and --- are as far
    assert paired_permutation([0.5] * 5, [0.5] * 5).p_value == 1.0
    source = random.Random(3)
    drawn = [source.gauss(0, 1) for _ in range(200)]
    noise = [value - sum(drawn) / len(drawn) + 0.05 for value in drawn]
    same, shifted = paired_permutation([0.0] * 200, noise), paired_permutation([-0.5] * 200, noise)
    assert paired_permutation([0.0] * 200, noise) == same and same.p_value > 0.05 and same.low < 0 < same.high
    assert shifted.p_value < 0.001 and shifted.low > 0 and shifted.difference == pytest.approx(same.difference + 0.5)
    with pytest.raises(ValueError, match="at least two pairs, not 1"):
        paired_permutation([0.0], [1.0])
