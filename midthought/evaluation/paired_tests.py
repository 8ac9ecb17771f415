"""Tests of paired measurements: the same questions answered twice, or the same seeds trained twice. Needs no scipy.

All intervals are 95 %, all p-values two-sided, all differences `other - baseline`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from midthought.evaluation.metrics import wilson_interval

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
_RESAMPLES_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedTest:
    """A test of paired measurements with its numbers."""

    name: str
    """`exact McNemar test`, `paired bootstrap` or `paired t test`."""
    unit: str
    """What was paired: `question` or `seed`."""
    num_pairs: int
    difference: float
    """Mean of `other - baseline`."""
    low: float
    high: float
    """Ends of the 95 % interval of the difference."""
    statistic_name: str
    statistic: float
    p_value: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def mcnemar(baseline: Sequence[bool], other: Sequence[bool]) -> PairedTest:
    """Compares the right answers of two policies on the same questions. Raises ValueError without questions.

    `p = min(1, 2 · Σ_{k ≤ min(b, c)} C(b + c, k) / 2^(b + c))`, with b questions that only `baseline` and c that only `other`
    answered correctly: the exact test of McNemar, Psychometrika 12 (1947). The statistic is c. The interval is
    `difference_interval`.
    """
    pairs = list(zip(baseline, other, strict=True))
    if not pairs:
        raise ValueError("there is no pair; give at least one question that both answered")
    num_lost, num_gained = pairs.count((True, False)), pairs.count((False, True))
    num_changed = num_lost + num_gained
    tail = sum(math.comb(num_changed, k) for k in range(min(num_lost, num_gained) + 1))
    low, high = difference_interval(pairs.count((True, True)), num_lost, num_gained, pairs.count((False, False)))
    return PairedTest(
        name="exact McNemar test",
        unit="question",
        num_pairs=len(pairs),
        difference=(num_gained - num_lost) / len(pairs),
        low=low,
        high=high,
        statistic_name="wrong→right",
        statistic=num_gained,
        p_value=min(1.0, 2 * tail / 2**num_changed),
    )


def difference_interval(num_both: int, num_lost: int, num_gained: int, num_neither: int) -> tuple[float, float]:
    """Returns the 95 % interval of a difference of two shares of the same questions.

    Source: Newcombe, Statistics in Medicine 17 (1998), 2635–2650, method 10: Wilson's intervals of both shares, combined with
    their correlation. Unlike a bootstrap, it has a width if no answer changed.
    """
    num = num_both + num_lost + num_gained + num_neither
    first, second = (num_both + num_gained) / num, (num_both + num_lost) / num
    low_1, high_1 = wilson_interval(first, num)
    low_2, high_2 = wilson_interval(second, num)
    product = num_both * num_neither - num_lost * num_gained
    margins = (num_both + num_gained) * (num_lost + num_neither) * (num_both + num_lost) * (num_gained + num_neither)
    corrected = max(product - num / 2, 0.0) if product > 0 else float(product)
    phi = corrected / math.sqrt(margins) if margins else 0.0
    down, up = (first - low_1, high_2 - second), (high_1 - first, second - low_2)
    widths = [math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0)) for a, b in (down, up)]
    return max(first - second - widths[0], -1.0), min(first - second + widths[1], 1.0)


def paired_bootstrap(differences: Sequence[float], *, seed: int = 0) -> PairedTest:
    """Tests whether the mean of paired differences is 0. Raises ValueError for fewer than two.

    10,000 samples with replacement, the same ones for the same `seed` and number of pairs. The interval has the 2.5 % and 97.5 %
    quantiles of their means; `p = (1 + #{|m* - m| ≥ |m|}) / (10,000 + 1)`, m the mean and m* the mean of a sample.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 16.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2:
        raise ValueError(f"a bootstrap needs at least two pairs, not {len(values)}")
    source = np.random.default_rng(seed)
    chunks = [
        values[source.integers(len(values), size=(_RESAMPLES_AT_ONCE, len(values)))].mean(axis=1)
        for _ in range(NUM_RESAMPLES // _RESAMPLES_AT_ONCE)
    ]
    means, mean = np.concatenate(chunks), float(values.mean())
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    num_as_far = int((np.abs(means - mean) >= abs(mean) * (1 - 1e-12)).sum())
    return PairedTest(
        name="paired bootstrap",
        unit="question",
        num_pairs=len(values),
        difference=mean,
        low=float(low),
        high=float(high),
        statistic_name="mean difference",
        statistic=mean,
        p_value=(1 + num_as_far) / (NUM_RESAMPLES + 1),
    )


def paired_t(differences: Sequence[float]) -> PairedTest | None:
    """Tests whether the mean of paired differences is 0, for a few seeds. None if there are fewer than two, or all are equal.

    `t = mean / (s / √n)` with n - 1 degrees of freedom. Source: Student, Biometrika 6 (1908).
    """
    if (interval := mean_interval(differences)) is None:
        return None
    mean, low, high = interval
    error = (high - mean) / t_quantile(len(differences) - 1)
    if error <= 1e-12 * max(map(abs, differences)):
        return None
    return PairedTest(
        name="paired t test",
        unit="seed",
        num_pairs=len(differences),
        difference=mean,
        low=low,
        high=high,
        statistic_name="t",
        statistic=mean / error,
        p_value=t_two_sided(mean / error, len(differences) - 1),
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Returns the mean and the ends of its 95 % t interval; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = t_quantile(len(values) - 1) * math.sqrt(variance / len(values))
    return mean, mean - half, mean + half


def t_two_sided(t: float, degrees: int) -> float:
    """Returns `P(|T| ≥ |t|)` of Student's t distribution with whole degrees of freedom.

    The finite sums of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4; θ = atan(|t| / √degrees).
    """
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2 == 1
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for power in range(1 if is_odd else 0, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    within = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return min(max(1.0 - within, 0.0), 1.0)


def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Returns the t with `P(|T| < t) = confidence`, by bisection.

    >>> round(t_quantile(4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while t_two_sided(high, degrees) > 1 - confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_two_sided(middle, degrees) > 1 - confidence else (low, middle)
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for their number. Source: Holm, Scandinavian Journal of Statistics 6 (1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
