"""Searches by meaning for several queries in one question to LanceDB, which then reads the vectors once for all.

The hits are those of `MemoryStore.search`; only where every vector is compared is this quicker, so with an index of the
vectors the store is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from midthought.memory.filters import Filters
from midthought.memory.rows import CHUNK_COLUMNS, chunks_of
from midthought.memory.searching import _MIN_CANDIDATES, Hit
from midthought.memory.store import MemoryStore


def compares_all(store: MemoryStore) -> bool:
    """Whether searching by meaning compares every vector: there is no index of them."""
    return all("vector" not in index.columns for index in store._open_table().table.list_indices())


def search_together(store: MemoryStore, vectors: Sequence[np.ndarray], k: int, filters: Filters) -> list[list[Hit]]:
    """What the store finds by meaning for each vector, [D], best first."""
    table: Any = store._open_table().table
    search = table.search(np.stack(vectors), vector_column_name="vector").distance_type("cosine")
    if where := filters.to_sql():
        search = search.where(where, prefilter=True)
    rows = search.select([*CHUNK_COLUMNS, "_distance"]).limit(max(2 * k, _MIN_CANDIDATES)).to_arrow()
    found: list[list[Hit]] = [[] for _ in vectors]
    columns = (rows[name].to_pylist() for name in ("query_index", "_distance"))
    for chunk, number, distance in zip(chunks_of(rows), *columns, strict=True):
        hit = Hit(chunk.chunk_id, chunk.episode, chunk.speaker, chunk.transcript, chunk.time, 1 - distance)
        found[number].append(hit)
    return [sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))[:k] for hits in found]
