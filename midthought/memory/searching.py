"""How a table is asked: by words, by meaning, or by both, within filters. Knows no embedding model and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from midthought.errors import SettingsError, near_names
from midthought.memory.filters import Filters
from midthought.memory.rows import CHUNK_COLUMNS, chunks_of

SearchMode = Literal["hybrid", "vector", "full_text"]

_MIN_CANDIDATES = 20  # the same for every k up to 10, so that k does not change which rows come first


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a search found. `score` is BM25, cosine or reciprocal-rank fusion, by the mode of the search."""

    chunk_id: str
    episode: str
    speaker: str
    transcript: str
    time: str
    score: float


def check_search(k: int, mode: str) -> None:
    """Raises SettingsError where there is no such way to search."""
    if mode not in get_args(SearchMode):
        raise SettingsError(f"mode {mode!r} is not a way to search. {near_names(mode, get_args(SearchMode))}")
    if k < 1:
        raise SettingsError(f"k must be at least 1, not {k}")


def find(table: Any, query: str, vector: np.ndarray | None, k: int, mode: SearchMode, filters: Filters) -> list[Hit]:
    """The best `k` hits, best first; `vector` is that of the query, and not needed for `full_text`."""
    found = _ask(table, query, vector, mode, max(2 * k, _MIN_CANDIDATES), filters.to_sql())
    return sorted(found, key=lambda hit: (-hit.score, hit.chunk_id))[:k]


def _ask(
    table: Any, query: str, vector: np.ndarray | None, mode: SearchMode, limit: int, where: str | None
) -> list[Hit]:
    """What LanceDB finds. The score of a vector is its cosine; BM25 and the fused score stay as they are."""
    from lancedb.query import BooleanQuery, MatchQuery, Occur, PhraseQuery
    from lancedb.rerankers import RRFReranker

    kinds: tuple[Any, ...] = (MatchQuery, PhraseQuery)  # a type checker misreads the defaults of their settings
    words = BooleanQuery([(Occur.SHOULD, kind(query, "transcript")) for kind in kinds])
    if mode == "full_text":
        search = table.search(words, query_type="fts").select([*CHUNK_COLUMNS, "_score"])
    elif mode == "vector":
        search = table.search(vector, vector_column_name="vector").distance_type("cosine")
        search = search.select([*CHUNK_COLUMNS, "_distance"])
    else:
        search = table.search(query_type="hybrid", vector_column_name="vector").vector(vector).text(words)
        search = search.distance_type("cosine").rerank(RRFReranker(K=60))
    if where:
        search = search.where(where, prefilter=True)
    rows = search.limit(limit).to_arrow()
    if mode == "full_text":
        scores = rows["_score"].to_pylist()
    elif mode == "vector":
        scores = [1 - distance for distance in rows["_distance"].to_pylist()]
    else:
        scores = rows["_relevance_score"].to_pylist()
    return [
        Hit(chunk.chunk_id, chunk.episode, chunk.speaker, chunk.transcript, chunk.time, score)
        for chunk, score in zip(chunks_of(rows), scores, strict=True)
    ]
