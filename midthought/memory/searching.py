"""How a table is asked: by words, by meaning, or by both, within filters. Knows no embedding model and writes nothing."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from midthought.errors import SettingsError, near_names
from midthought.memory.filters import Filters
from midthought.memory.indexing import NUM_PROBES

SearchMode = Literal["hybrid", "vector", "full_text"]

_HIT_COLUMNS = ("id", "episode", "speaker", "transcript", "time")
_MAX_TOGETHER = 32
_MIN_CANDIDATES = 20  # the same for every k up to 10, so that k does not change which rows come first
_NUM_WEIGHED = 5
_RANK_OFFSET = 20
_MIN_WEIGHT = 0.02
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a search found. `score` is BM25, cosine or that of `fuse`, by the mode of the search."""

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


def find_each(
    table: Any,
    queries: Sequence[str],
    vectors: Sequence[np.ndarray],
    k: int,
    mode: SearchMode,
    filters: Filters,
    *,
    is_large: bool = False,
) -> list[list[Hit]]:
    """The best `k` hits for each query, best first; `vectors` are those of the queries, and not needed for `full_text`.

    Vectors that are all compared are compared with all queries at once, so that they are read once. Of a large table they
    are looked up instead, and phrases are not: LanceDB takes a second for that in a million rows. There the hits by words
    are weighed by the share of the query that stands in a row in each.
    """
    limit, where = max(2 * k, _MIN_CANDIDATES), filters.to_sql()
    by_meaning: list[list[Hit]] = []
    if mode != "full_text":
        num_together = 1 if is_large else _MAX_TOGETHER
        num_read = k if is_large and mode == "vector" else limit
        for start in range(0, len(queries), num_together):
            by_meaning += _by_meaning(table, vectors[start : start + num_together], limit, num_read, where)
    if mode == "vector":
        return [hits[:k] for hits in by_meaning]
    look_up = _by_words_weighed if is_large else _by_words_and_phrase
    by_words = [look_up(table, query, limit, where) for query in queries]
    if mode == "full_text":
        return [hits[:k] for hits in by_words]
    return [fuse(*each)[:k] for each in zip(queries, by_words, by_meaning, strict=True)]


def fuse(query: str, by_words: Sequence[Hit], by_meaning: Sequence[Hit]) -> list[Hit]:
    """Reciprocal-rank fusion, each way of searching weighted by how far the query is a quote.

    score = w / (20 + rank by words) + (1 - w) / (20 + rank by meaning), where a hit that a way did not find gets nothing
    from it, and w is the square of the share of the query's words that stand in a row, in its order, in the best hit by
    words; 0.02 at least and 0.98 at most. After Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms
    Condorcet and individual rank learning methods" (2009), which weighs all alike and adds 60; docs/benchmarks.md says
    what that is behind.
    """
    share = share_in_a_row(query, by_words[0].transcript) if by_words else 0.0
    weight = min(max(share**2, _MIN_WEIGHT), 1 - _MIN_WEIGHT)
    scores: dict[str, float] = {}
    hits: dict[str, Hit] = {}
    for found, worth in ((by_words, weight), (by_meaning, 1 - weight)):
        for rank, hit in enumerate(found, 1):
            hits[hit.chunk_id] = hit
            scores[hit.chunk_id] = scores.get(hit.chunk_id, 0.0) + worth / (_RANK_OFFSET + rank)
    return _in_order(replace(hit, score=scores[chunk_id]) for chunk_id, hit in hits.items())


def share_in_a_row(query: str, text: str) -> float:
    """The longest run of the query's words that stands in the text, over all of the query's words; 0 where it has none."""
    asked, there = words_of(query), f" {' '.join(words_of(text))} "
    for length in range(len(asked), 0, -1):
        if any(f" {' '.join(asked[start : start + length])} " in there for start in range(len(asked) - length + 1)):
            return length / len(asked)
    return 0.0


def words_of(text: str) -> list[str]:
    """Words as searching by them compares them: runs of letters and digits, without case and accents."""
    bare = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return _WORD.findall(bare.casefold())


def _by_words_and_phrase(table: Any, query: str, limit: int, where: str | None) -> list[Hit]:
    """BM25 of the words, and of the query as a phrase."""
    from lancedb.query import BooleanQuery, MatchQuery, Occur, PhraseQuery

    kinds: tuple[Any, ...] = (MatchQuery, PhraseQuery)  # a type checker misreads the defaults of their settings
    return _by(table, BooleanQuery([(Occur.SHOULD, kind(query, "transcript")) for kind in kinds]), limit, where)


def _by_words_weighed(table: Any, query: str, limit: int, where: str | None) -> list[Hit]:
    """BM25 of the words, times 1 + the square of the share in a row; the best by BM25, five times as many, are weighed."""
    from lancedb.query import MatchQuery

    kind: Any = MatchQuery
    found = _by(table, kind(query, "transcript"), _NUM_WEIGHED * limit, where)
    weighed = (replace(hit, score=hit.score * (1 + share_in_a_row(query, hit.transcript) ** 2)) for hit in found)
    return _in_order(weighed)[:limit]


def _by(table: Any, words: Any, limit: int, where: str | None) -> list[Hit]:
    search = table.search(words, query_type="fts").select([*_HIT_COLUMNS, "_score"]).limit(limit)
    rows = (search.where(where, prefilter=True) if where else search).to_arrow()
    return _in_order(_hits_of(rows, rows["_score"].to_pylist()))


def _by_meaning(
    table: Any, vectors: Sequence[np.ndarray], limit: int, num_read: int, where: str | None
) -> list[list[Hit]]:
    """The cosine of the vectors, for each of those asked for. Where vectors are indexed, `limit` of those found by their codes
    are compared as they are. The rows of the best `num_read` are read: of a large table that is half of a search."""
    asked = vectors[0] if len(vectors) == 1 else np.stack(vectors)
    search = table.search(asked, vector_column_name="vector").distance_type("cosine")
    search = search.nprobes(NUM_PROBES).refine_factor(-(-limit // num_read))
    search = search.select([*_HIT_COLUMNS, "_distance"]).limit(num_read)
    rows = (search.where(where, prefilter=True) if where else search).to_arrow()
    hits = _hits_of(rows, [1 - distance for distance in rows["_distance"].to_pylist()])
    numbers = rows["query_index"].to_pylist() if len(vectors) > 1 else [0] * len(hits)
    found: list[list[Hit]] = [[] for _ in vectors]
    for number, hit in zip(numbers, hits, strict=True):
        found[number].append(hit)
    return [_in_order(each) for each in found]


def _hits_of(rows: Any, scores: Sequence[float]) -> list[Hit]:
    columns = (rows[name].to_pylist() for name in _HIT_COLUMNS)
    return [Hit(*each) for each in zip(*columns, scores, strict=True)]


def _in_order(hits: Iterable[Hit]) -> list[Hit]:
    return sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))
