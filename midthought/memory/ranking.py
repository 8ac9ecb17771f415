"""Exact ranking of the rows of a memory: by words (BM25), by vectors (cosine), and by both (reciprocal-rank fusion).

Holds everything in memory: about 2 kB a row with 384 dimensions. Knows no table and no model. Equal scores rank by row.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

_SATURATION = 1.2  # BM25's k1
_LENGTH_WEIGHT = 0.75  # BM25's b
_PAIR_WEIGHT = 0.5
_FUSION_DEPTH = 100
_DECIMALS = 6  # equal texts may differ in the last bits, by where their rows stand

_APOSTROPHES = re.compile(r"(?<=\w)['’‘ʼ`´](?=\w)")
_WORD = re.compile(r"[^\W_]+")

Ranking = tuple[np.ndarray, np.ndarray]
"""Row numbers, best first, and their scores."""


def search_words(text: str) -> list[str]:
    """The words that are indexed: lower case, no accents, punctuation or apostrophes; none is stemmed or left out."""
    folded = unicodedata.normalize("NFKD", _APOSTROPHES.sub("", text).casefold())
    return _WORD.findall("".join(letter for letter in folded if not unicodedata.combining(letter)))


class WordIndex:
    """BM25 over words and over pairs of neighbouring words, which reward a quote that keeps its order.

    score = sum over the query's terms of weight * idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean length)),
    idf = ln(1 + (N - n + 0.5) / (n + 0.5)), k1 = 1.2, b = 0.75 (Robertson and Zaragoza, The Probabilistic Relevance
    Framework, 2009); the weight of a word is 1, that of a pair 0.5. Lengths are in words.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.num_rows = len(texts)
        self._word_ids: dict[str, int] = {}
        words: list[int] = []
        lengths = np.zeros(self.num_rows, dtype=np.int64)
        for row, text in enumerate(texts):
            found = search_words(text)
            lengths[row] = len(found)
            words.extend(self._word_ids.setdefault(word, len(self._word_ids)) for word in found)
        ids = np.asarray(words, dtype=np.int64)
        rows = np.repeat(np.arange(self.num_rows), lengths)
        same_row = rows[1:] == rows[:-1]
        norm = (
            _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * lengths / max(lengths.mean(), 1)) if words else lengths
        )
        self._words = _Postings(ids, rows, norm)
        self._pairs = _Postings(self._pair_terms(ids)[same_row], rows[1:][same_row], norm)

    def rank(self, query: str, limit: int) -> Ranking:
        """At most `limit` rows that share a word with the query. The query is words, never a query language."""
        scores = np.zeros(self.num_rows, dtype=np.float64)
        ids = np.asarray([self._word_ids.get(word, -1) for word in search_words(query)], dtype=np.int64)
        for term in dict.fromkeys(ids[ids >= 0].tolist()):
            self._words.add_scores(term, scores, 1.0)
        known = (ids[1:] >= 0) & (ids[:-1] >= 0)
        for term in dict.fromkeys(self._pair_terms(ids)[known].tolist()):
            self._pairs.add_scores(term, scores, _PAIR_WEIGHT)
        rows, best = _best(scores, limit)
        return rows[best > 0], best[best > 0]

    def _pair_terms(self, ids: np.ndarray) -> np.ndarray:
        return ids[:-1] * len(self._word_ids) + ids[1:]


class _Postings:
    """For every term the rows that hold it and their BM25 weights, in three flat arrays."""

    def __init__(self, terms: np.ndarray, rows: np.ndarray, norm: np.ndarray) -> None:
        num_rows = len(norm)
        keys, counts = np.unique(terms * num_rows + rows, return_counts=True)
        self._rows = keys % max(num_rows, 1)
        self._terms, starts, num_holders = np.unique(keys // max(num_rows, 1), return_index=True, return_counts=True)
        self._bounds = np.append(starts, len(keys))
        idf = np.log1p((num_rows - num_holders + 0.5) / (num_holders + 0.5))
        self._weights = np.repeat(idf, num_holders) * counts * (_SATURATION + 1) / (counts + norm[self._rows])

    def add_scores(self, term: int, scores: np.ndarray, weight: float) -> None:
        position = int(np.searchsorted(self._terms, term))
        if position < len(self._terms) and self._terms[position] == term:
            postings = slice(self._bounds[position], self._bounds[position + 1])
            scores[self._rows[postings]] += weight * self._weights[postings]


def rank_vectors(vectors: np.ndarray, query: np.ndarray, limit: int) -> Ranking:
    """Cosine of the unit vectors [N, D] with the unit vector [D], at most `limit` rows."""
    return _best(vectors @ query, limit)


def fuse(rankings: Sequence[Ranking], limit: int, num_rows: int) -> Ranking:
    """Reciprocal-rank fusion: score = sum over the rankings of 1 / (60 + rank), rank from 1 (Cormack et al. 2009)."""
    scores = np.zeros(num_rows, dtype=np.float64)
    for rows, _ in rankings:
        scores[rows] += 1.0 / (60 + 1 + np.arange(len(rows)))
    rows, best = _best(scores, limit)
    return rows[best > 0], best[best > 0]


def fusion_depth(limit: int) -> int:
    """How many rows of each ranking are fused to find the best `limit`."""
    return max(_FUSION_DEPTH, limit)


def _best(scores: np.ndarray, limit: int) -> Ranking:
    """The `limit` highest scores in falling order; among equal ones the first rows."""
    scores = np.round(scores.astype(np.float64), _DECIMALS)
    candidates = np.arange(len(scores))
    if limit < len(scores):
        threshold = np.partition(scores, -limit)[-limit]
        candidates = np.flatnonzero(scores >= threshold)
    order = np.lexsort((candidates, -scores[candidates]))[:limit]
    return candidates[order], scores[candidates[order]]
