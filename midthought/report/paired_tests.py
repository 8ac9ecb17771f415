"""Tests of paired measurements: the same questions answered twice.

All intervals are 95 %, all p-values two-sided, all differences `other - baseline`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedTest:
    """A test of paired measurements with its numbers."""

    name: str
    num_pairs: int
    difference: float
    """Mean of `other - baseline`."""
    low: float
    high: float
    """Ends of the 95 % interval of the difference."""
    p_value: float


def mcnemar(baseline: Sequence[bool], other: Sequence[bool]) -> PairedTest:
    """Compares the right answers of two policies on the same questions. Raises ValueError without questions.

    The exact test of McNemar, Psychometrika 12 (1947): the binomial test of the changed answers. The interval is
    `difference_interval`.
    """
    pairs = list(zip(baseline, other, strict=True))
    if not pairs:
        raise ValueError("there is no pair; give at least one question that both answered")
    num_lost, num_gained = pairs.count((True, False)), pairs.count((False, True))
    num_changed = num_lost + num_gained
    low, high = difference_interval(pairs.count((True, True)), num_lost, num_gained, pairs.count((False, False)))
    return PairedTest(
        name=f"exact McNemar: {num_gained} wrong→right, {num_lost} right→wrong",
        num_pairs=len(pairs),
        difference=(num_gained - num_lost) / len(pairs),
        low=low,
        high=high,
        p_value=float(stats.binomtest(num_gained, num_changed).pvalue) if num_changed else 1.0,
    )


def difference_interval(num_both: int, num_lost: int, num_gained: int, num_neither: int) -> tuple[float, float]:
    """Returns the 95 % interval of a difference of two shares of the same questions.

    Source: Newcombe, Statistics in Medicine 17 (1998), 2635–2650, method 10: Wilson's intervals of both shares, combined with
    their correlation. Unlike a bootstrap, it has a width if no answer changed.
    """
    num = num_both + num_lost + num_gained + num_neither
    first, second = (num_both + num_gained) / num, (num_both + num_lost) / num
    (low_1, high_1), (low_2, high_2) = (
        stats.binomtest(count, num).proportion_ci(method="wilson")
        for count in (num_both + num_gained, num_both + num_lost)
    )
    product = num_both * num_neither - num_lost * num_gained
    margins = (num_both + num_gained) * (num_lost + num_neither) * (num_both + num_lost) * (num_gained + num_neither)
    corrected = max(product - num / 2, 0.0) if product > 0 else float(product)
    phi = corrected / math.sqrt(margins) if margins else 0.0
    down, up = (first - low_1, high_2 - second), (high_1 - first, second - low_2)
    widths = [math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0)) for a, b in (down, up)]
    return max(first - second - widths[0], -1.0), min(first - second + widths[1], 1.0)


def paired_permutation(baseline: Sequence[float], other: Sequence[float]) -> PairedTest:
    """Tests whether paired differences are symmetric around 0, by flipping signs. Raises ValueError for fewer than two.

    At most 9,999 sign patterns and, for the interval of the mean, bootstrap samples (percentiles), the same ones every time.
    """
    values = np.subtract(other, baseline, dtype=np.float64)
    if len(values) < 2:
        raise ValueError(f"a paired test needs at least two pairs, not {len(values)}")
    options = {"n_resamples": 9_999, "batch": 500, "vectorized": True}
    found = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", rng=np.random.default_rng(0), **options
    )
    resampled = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0), **options)
    low, high = map(float, resampled.confidence_interval)
    return PairedTest(
        name="paired permutation",
        num_pairs=len(values),
        difference=float(values.mean()),
        low=low,
        high=high,
        p_value=float(found.pvalue),
    )
