"""Vectors of a window's sentences: they order the windows that a vector search has found.

A window's own vector stands for all that is said in it, but a question asks about one or two of its sentences. The windows
nearest to a query are therefore ordered by

    score = (cos(query, window) + 0.8 · mean of the two largest cos(query, sentence)) / 1.8

Weight and number were chosen on the questions for tuning (`python -m benchmarks paraphrases`). Does not depend on tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

_WEIGHT = 0.8
_NUM_SENTENCES = 2
_LARGEST = 127


def packed(vectors: np.ndarray) -> bytes:
    """Returns unit vectors, float32 [N, D], as N · D signed bytes: a cosine changes by less than 0.01."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=np.finfo(np.float32).tiny)
    return np.rint(vectors * (_LARGEST / largest)).astype(np.int8).tobytes()


def scores(cosines: Sequence[float], query: np.ndarray, sentences: Sequence[bytes]) -> list[float]:
    """Returns the scores of windows with these cosines to the query, float32 [D]; the cosine of a window
    without sentences, or with bytes that are not whole vectors."""
    of_windows = [content if len(content) % len(query) == 0 else b"" for content in sentences]
    vectors = np.frombuffer(b"".join(of_windows), dtype=np.int8).reshape(-1, len(query)).astype(np.float32)
    of_sentences = iter((vectors @ query / np.maximum(np.linalg.norm(vectors, axis=1), 1)).tolist())
    return [
        _score(cosine, list(islice(of_sentences, len(content) // len(query))))
        for cosine, content in zip(cosines, of_windows, strict=True)
    ]


def _score(cosine: float, of_sentences: list[float]) -> float:
    largest = sorted(of_sentences)[-_NUM_SENTENCES:]
    return (cosine + _WEIGHT * sum(largest) / len(largest)) / (1 + _WEIGHT) if largest else cosine
