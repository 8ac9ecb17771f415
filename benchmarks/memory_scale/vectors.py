"""Random vectors that are distributed like real embeddings: draws from a mixture of Gaussians fitted to them.

Real embeddings are clustered by k-means (cosine). For each cluster we keep its share, its mean, its
covariance at low rank (by singular values) and one small variance for all other directions. A draw is a point of such a
Gaussian, scaled to length 1. `spread` widens all clusters: it is fitted so that drawn points are as far from their nearest
neighbours as real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

NUM_CLUSTERS = 192
RANK = 24
NUM_ITERATIONS = 12
SPREADS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3)
NUM_ASKED = 1_000
RANKS = (1, 10)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """K Gaussians in D dimensions."""

    shares: np.ndarray  # [K]
    means: np.ndarray  # [K, D]
    directions: np.ndarray  # [K, R, D], each as long as its standard deviation
    rest: np.ndarray  # [K], standard deviation in every other direction
    spread: float = 1.0

    @property
    def dimension(self) -> int:
        return self.means.shape[1]

    def draw(self, num_vectors: int, rng: np.random.Generator) -> np.ndarray:
        """Unit vectors, float32 [N, D]."""
        clusters = np.sort(rng.choice(len(self.shares), size=num_vectors, p=self.shares))
        vectors = rng.standard_normal((num_vectors, self.dimension), dtype=np.float32)
        vectors *= (self.spread * self.rest)[clusters, None]
        bounds = np.searchsorted(clusters, np.arange(len(self.shares) + 1))
        for cluster, (start, end) in enumerate(pairwise(bounds)):
            weights = rng.standard_normal((end - start, self.directions.shape[1]), dtype=np.float32)
            vectors[start:end] += self.means[cluster] + self.spread * weights @ self.directions[cluster]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors[rng.permutation(num_vectors)]


def fit(vectors: np.ndarray, num_clusters: int = NUM_CLUSTERS, seed: int = 0) -> Mixture:
    """The mixture of unit vectors, float32 [N, D]."""
    rng = np.random.default_rng(seed)
    clusters = _cluster(vectors, min(num_clusters, len(vectors) // 20), rng)
    shares, means, directions, rest = [], [], [], []
    for cluster in np.unique(clusters):
        members = vectors[clusters == cluster]
        mean = members.mean(0)
        _, lengths, axes = np.linalg.svd(members - mean, full_matrices=False)
        variances = lengths**2 / max(1, len(members) - 1)
        kept = np.zeros((RANK, vectors.shape[1]), dtype=np.float32)
        kept[: len(axes[:RANK])] = axes[:RANK] * np.sqrt(variances[:RANK, None])
        shares.append(len(members) / len(vectors))
        means.append(mean)
        directions.append(kept)
        rest.append(np.sqrt(variances[RANK:].sum() / max(1, vectors.shape[1] - RANK)))
    made = {"shares": np.asarray(shares), "means": np.stack(means), "directions": np.stack(directions)}
    made["rest"] = np.asarray(rest, dtype=np.float32)
    wanted = neighbour_distances(vectors)

    def miss(spread: float) -> float:
        drawn = Mixture(**made, spread=spread).draw(len(vectors), np.random.default_rng(seed))
        found = neighbour_distances(drawn)
        return sum(abs(float(np.median(found[rank]) - np.median(wanted[rank]))) for rank in RANKS)

    return Mixture(**made, spread=min(SPREADS, key=miss))


def neighbour_distances(vectors: np.ndarray, ranks: Sequence[int] = RANKS) -> dict[int, np.ndarray]:
    """Cosine distance of some of the vectors to their 1st, 10th … neighbour among all of them, by rank."""
    asked = np.linspace(0, len(vectors) - 1, min(NUM_ASKED, len(vectors))).astype(int)
    distances = 1 - vectors[asked] @ vectors.T
    distances[np.arange(len(asked)), asked] = np.inf
    nearest = np.sort(np.partition(distances, max(ranks), axis=1)[:, : max(ranks)], axis=1)
    return {rank: nearest[:, rank - 1] for rank in ranks}


def neighbours_beside(real: np.ndarray, drawn: np.ndarray) -> str:
    """Markdown: how far neighbours are, real and drawn, as many of the one as of the other."""
    head = " | ".join(f"{quantile:.0%}" for quantile in QUANTILES)
    lines = [f"| cosine distance to | {head} |", "| --- " * (len(QUANTILES) + 1) + "|"]
    for name, vectors in (("real", real), ("drawn", drawn)):
        for rank, distances in neighbour_distances(vectors).items():
            figures = " | ".join(f"{figure:.3f}" for figure in np.quantile(distances, QUANTILES))
            lines.append(f"| neighbour {rank}, {name} | {figures} |")
    return "\n".join(lines)


def _cluster(vectors: np.ndarray, num_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """The cluster of each vector, by k-means on the unit sphere."""
    centres = vectors[rng.choice(len(vectors), num_clusters, replace=False)]
    for _ in range(NUM_ITERATIONS):
        clusters = np.argmax(vectors @ centres.T, axis=1)
        sums = np.zeros_like(centres)
        np.add.at(sums, clusters, vectors)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centres)
    return np.argmax(vectors @ centres.T, axis=1)
