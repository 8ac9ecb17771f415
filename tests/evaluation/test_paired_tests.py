"""Paired tests against numbers worked by hand, and scipy if it is installed."""

from __future__ import annotations

import math
import random

import pytest

from midthought.evaluation.paired_tests import (
    difference_interval,
    holm,
    mcnemar,
    mean_interval,
    paired_bootstrap,
    paired_t,
    t_quantile,
    t_two_sided,
)


def answers(both: int, lost: int, gained: int, neither: int) -> tuple[list[bool], list[bool]]:
    before = [True] * (both + lost) + [False] * (gained + neither)
    return before, [True] * both + [False] * lost + [True] * gained + [False] * neither


def test_mcnemar_is_the_binomial_of_the_changed_answers() -> None:
    found = mcnemar(*answers(10, 1, 5, 4))
    assert found.p_value == pytest.approx(2 * (1 + 6) / 64)  # b + c = 6, min = 1: 2 · (C(6,0) + C(6,1)) / 2^6
    assert (found.num_pairs, found.statistic, found.difference) == (20, 5, 0.2)
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


def test_the_bootstrap_is_repeatable_and_finds_a_shift() -> None:
    source = random.Random(3)
    drawn = [source.gauss(0, 1) for _ in range(200)]
    noise = [value - sum(drawn) / len(drawn) + 0.05 for value in drawn]
    same, shifted = paired_bootstrap(noise), paired_bootstrap([value + 0.5 for value in noise])
    assert paired_bootstrap(noise) == same and same.p_value > 0.05 and same.low < 0 < same.high
    assert shifted.p_value < 0.001 and shifted.low > 0 and shifted.difference == pytest.approx(same.difference + 0.5)
    by_theory = mean_interval(noise)
    assert by_theory is not None and (same.low, same.high) == pytest.approx(by_theory[1:], abs=0.02)
    assert paired_bootstrap([0.0] * 5).p_value == 1.0
    with pytest.raises(ValueError, match="at least two pairs, not 1"):
        paired_bootstrap([1.0])


def test_t_has_the_numbers_of_the_tables() -> None:
    for degrees, quantile in ((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042)):
        assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-4)
    found = paired_t([0.1, 0.2, 0.3])  # mean 0.2, s 0.1, t = 0.2 / (0.1 / √3)
    assert found is not None and found.statistic == pytest.approx(2 * math.sqrt(3)) and found.num_pairs == 3
    assert found.p_value == pytest.approx(1 - 12**0.5 / 14**0.5)  # two degrees: 1 - |t| / √(2 + t²)
    assert (found.low, found.high) == pytest.approx(
        (0.2 - 4.3027 * 0.1 / 3**0.5, 0.2 + 4.3027 * 0.1 / 3**0.5), abs=1e-4
    )
    assert paired_t([0.1]) is None and paired_t([0.125, 0.125]) is None and paired_t([0.0, 0.0, 0.0]) is None


def test_holm_keeps_the_order_and_never_decreases() -> None:
    assert (
        holm([0.04, 0.001, 0.03]) == pytest.approx([0.06, 0.003, 0.06])
        and holm([]) == []
        and holm([0.9, 0.8]) == [1, 1]
    )


def test_scipy_agrees() -> None:
    stats = pytest.importorskip("scipy.stats")
    source = random.Random(5)
    for degrees in (1, 2, 5, 8, 40):
        t = source.uniform(-4, 4)
        assert t_two_sided(t, degrees) == pytest.approx(2 * stats.t.sf(abs(t), degrees), rel=1e-9)
    for lost, gained in ((0, 3), (7, 12), (40, 21)):
        found = mcnemar(*answers(9, lost, gained, 9)).p_value
        assert found == pytest.approx(stats.binomtest(gained, lost + gained).pvalue, rel=1e-9)
    values = [source.gauss(0.4, 1) for _ in range(12)]
    found, theirs = paired_t(values), stats.ttest_1samp(values, 0.0)
    assert found is not None and (found.statistic, found.p_value) == pytest.approx((theirs.statistic, theirs.pvalue))
