"""Recall and mean reciprocal rank of ranks, with bootstrap intervals.

A rank is the rank of the first relevant chunk, from 1; 0 if none is among the first 10. Ranks are int [N, M]: N queries in
M modes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.timing import Spread

NUM_RANKS = 10
NUM_DRAWS = 2_000

Worth = Callable[[np.ndarray], np.ndarray]


def _recall_at(k: int) -> Worth:
    return lambda ranks: ((ranks > 0) & (ranks <= k)).astype(float)


def _reciprocal(ranks: np.ndarray) -> np.ndarray:
    return np.where(ranks > 0, 1 / np.maximum(ranks, 1), 0.0)


FIGURES: Mapping[str, Worth] = {
    "recall@1": _recall_at(1),
    "recall@3": _recall_at(3),
    "recall@10": _recall_at(10),
    "MRR@10": _reciprocal,
}
"""What each query counts, from its rank; the figure is the mean over the queries."""


def drawn_means(ranks: np.ndarray, worth: Worth, seed: int) -> np.ndarray:
    """Means over the queries, float [1 + 2,000, M]: of all of them, then of as many drawn with replacement.

    A draw takes the same queries for every mode, so that modes are compared on the same ones.
    """
    counted = worth(ranks)
    drawn = np.random.default_rng(seed).integers(len(ranks), size=(NUM_DRAWS, len(ranks)))
    return np.concatenate([counted.mean(axis=0, keepdims=True), counted[drawn].mean(axis=1)])


def interval(means: np.ndarray) -> Spread:
    """The mean over all queries and the middle 95 % of the draws, of float [1 + 2,000]."""
    lowest, highest = np.quantile(means[1:], [0.025, 0.975])
    return Spread(float(means[0]), float(lowest), float(highest))


def lead(means: np.ndarray, mode: int) -> np.ndarray:
    """What one mode is above the best of the others, float [1 + 2,000], of the means of all modes."""
    return means[:, mode] - np.delete(means, mode, axis=1).max(axis=1)


def to_table(means: Mapping[str, Mapping[str, np.ndarray]], modes: Sequence[str]) -> str:
    """Markdown, a line for each kind and mode: every figure with its interval. Takes means by kind and by figure."""
    lines = [f"| asked | mode | {' | '.join(FIGURES)} |", "| --- " * (2 + len(FIGURES)) + "|"]
    for kind, of_kind in means.items():
        for number, mode in enumerate(modes):
            cells = [interval(of_kind[name][:, number]) for name in FIGURES]
            written = (f"{cell.median:.3f} ({cell.lowest:.3f} … {cell.highest:.3f})" for cell in cells)
            lines.append(f"| {kind} | {mode} | {' | '.join(written)} |")
    return "\n".join(lines)
