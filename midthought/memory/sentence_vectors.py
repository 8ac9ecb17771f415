"""Vectors of a window's sentences: they order the windows that a vector search has found.

A window's own vector stands for all that is said in it, but a question asks about one or two of its sentences. The windows
nearest to a query are therefore ordered by

    score = (cos(query, window) + 0.8 · mean of the two largest cos(query, sentence)) / 1.8

Weight and number were chosen on the questions for tuning (docs/benchmarks.md, Paraphrases). Does not depend on tables.
"""

from __future__ import annotations

import numpy as np

_WEIGHT = 0.8
_NUM_SENTENCES = 2
_LARGEST = 127


def packed(vectors: np.ndarray) -> bytes:
    """Returns unit vectors, float32 [N, D], as N · D signed bytes: a cosine changes by less than 0.01."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=np.finfo(np.float32).tiny)
    return np.rint(vectors * (_LARGEST / largest)).astype(np.int8).tobytes()


def unpacked(content: bytes, dimension: int) -> np.ndarray:
    """Returns the unit vectors, float32 [N, D]; none if the bytes are not whole vectors."""
    if not content or len(content) % dimension:
        return np.zeros((0, dimension), dtype=np.float32)
    vectors = np.frombuffer(content, dtype=np.int8).reshape(-1, dimension).astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)


def score(cosine: float, query: np.ndarray, sentences: bytes) -> float:
    """Returns the score of a window with this cosine to the query, float32 [D]; the cosine if it has no sentences."""
    cosines = np.sort(unpacked(sentences, len(query)) @ query)[-_NUM_SENTENCES:]
    return float((cosine + _WEIGHT * cosines.mean()) / (1 + _WEIGHT)) if len(cosines) else cosine
