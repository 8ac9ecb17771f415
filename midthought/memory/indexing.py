"""The indices of a memory's table: its words always, its vectors and names from a size on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

WORD_INDEX: dict[str, Any] = {
    "with_position": True, "stem": False, "remove_stop_words": False, "ascii_folding": True, "lower_case": True,
}  # fmt: skip
MIN_ROWS_FOR_VECTOR_INDEX = 20_000  # below it every vector is compared
NUM_PROBES = 16
"""Partitions of vectors that a search looks into."""
_ROWS_PER_PARTITION = 1_000


def index_table(table: Any, keep_versions: timedelta) -> None:
    """Index every row and put the table's files in order; versions older than `keep_versions` are dropped."""
    from lancedb.index import FTS, Bitmap, BTree

    table.create_index("transcript", config=FTS(**WORD_INDEX))
    if table.count_rows() >= MIN_ROWS_FOR_VECTOR_INDEX:
        table.create_index("vector", config=_vector_index())
        table.create_index("id", config=BTree())
        table.create_index("episode", config=Bitmap())
        table.create_index("speaker", config=Bitmap())
    table.optimize(cleanup_older_than=keep_versions)


def _vector_index() -> Any:
    """Partitions by k-means, one byte for each number. What that finds of a million rows is in docs/benchmarks.md.

    `optimize` keeps partitions of the size that the index was made for; of a number of them it knows nothing, and joins
    them until a few dozen are left.
    """
    from lancedb.index import IvfSq

    return IvfSq(distance_type="cosine", target_partition_size=_ROWS_PER_PARTITION, max_iterations=20, sample_rate=64)


def extend_indices(table: Any, keep_versions: timedelta) -> None:
    """Take rows that were put in, or out, into the indices that are there."""
    table.optimize(cleanup_older_than=keep_versions)


def is_indexed(table: Any) -> bool:
    """True where the words of every row are indexed, in the way that searches count on."""
    return any(
        index.columns == ["transcript"]
        and index.num_unindexed_rows == 0
        and WORD_INDEX.items() <= (index.index_details or {}).items()
        for index in table.list_indices()
    )


def is_wholly_indexed(table: Any) -> bool:
    """True where `index_table` has nothing left to index."""
    return is_indexed(table) and (has_vector_index(table) or table.count_rows() < MIN_ROWS_FOR_VECTOR_INDEX)


def has_vector_index(table: Any) -> bool:
    """True where vectors are looked up, and not all compared."""
    return bool(_vector_indices(table))


def warm_vector_index(table: Any) -> None:
    """Load the index of vectors, where there is one."""
    for name in _vector_indices(table):
        table.prewarm_index(name)


def _vector_indices(table: Any) -> list[str]:
    return [index.name for index in table.list_indices() if index.columns == ["vector"]]
