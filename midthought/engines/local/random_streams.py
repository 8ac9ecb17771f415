"""Random numbers that are functions of a seed and a position, so they do not depend on what else is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(state: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit integers that scatters every bit."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class RandomStreams:
    """Uniform random numbers, one stream per seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        words = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)
        self._mixed = _mix(words + _GOLDEN)

    def at(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns float64 in [0, 1), 53 random bits each. `positions`: `[n]` or `[m, n]`; column `i` is stream `i`."""
        words = _mix(self._mixed + (np.array(positions, dtype=np.uint64) + np.uint64(1)) * _GOLDEN)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
