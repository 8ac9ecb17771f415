"""The indices of a memory's LanceDB table: of words, and in a large table of vectors, ids, episodes and speakers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

WORD_INDEX: dict[str, Any] = {
    "with_position": True, "stem": False, "remove_stop_words": False, "ascii_folding": True, "lower_case": True,
    "base_tokenizer": "icu/split",
}  # fmt: skip
"""ICU's dictionaries find the words of scripts without blanks; all others are found as by LanceDB's default."""
MIN_ROWS_FOR_VECTOR_INDEX = 20_000  # with fewer rows every vector is compared
ROWS_PER_PARTITION = 1_000
VERSION_LIFETIME = timedelta(days=1)  # another process may still be reading an old version
MAX_UNINDEXED_ROWS = 2_000
"""So many new rows of a large table are searched without the indices; with more, the indices are extended."""


def index_table(table: Any) -> None:
    """Indexes every row and compacts the table's files; removes versions older than `VERSION_LIFETIME`.

    The vector index has partitions by k-means, and one byte per dimension. docs/measured.md has its recall for a million
    rows. `optimize` keeps the partition size that the index was created with. A number of partitions it does not remember:
    it would merge them until a few dozen remain.
    """
    from lancedb.index import FTS, Bitmap, BTree, IvfSq, LabelList

    table.create_index("transcript", config=FTS(**WORD_INDEX))
    if table.count_rows() >= MIN_ROWS_FOR_VECTOR_INDEX:
        sizes: dict[str, Any] = {"target_partition_size": ROWS_PER_PARTITION, "max_iterations": 20, "sample_rate": 64}
        table.create_index("vector", config=IvfSq(distance_type="cosine", **sizes))
        table.create_index("id", config=BTree())
        table.create_index("episode", config=Bitmap())
        table.create_index("speaker", config=Bitmap())
        if "speakers" in table.schema.names:
            table.create_index("speakers", config=LabelList())
    table.optimize(cleanup_older_than=VERSION_LIFETIME)


def is_indexed(table: Any) -> bool:
    """Whether the full-text index covers every row; in a large table, all rows but `MAX_UNINDEXED_ROWS`, which LanceDB searches
    one by one."""
    limit = MAX_UNINDEXED_ROWS if vector_indices(table) else 0
    return any(index.num_unindexed_rows <= limit for index in _word_indices(table))


def has_word_index(table: Any) -> bool:
    """Whether there is a full-text index, whichever rows it covers."""
    return bool(_word_indices(table))


def _word_indices(table: Any) -> list[Any]:
    return [index for index in table.list_indices() if index.columns == ["transcript"]]


def are_behind(table: Any) -> bool:
    """Whether an index lacks so many rows that it is to be extended."""
    return any(index.num_unindexed_rows > MAX_UNINDEXED_ROWS for index in table.list_indices())


def is_wholly_indexed(table: Any) -> bool:
    """Whether every index that searches need exists."""
    return is_indexed(table) and bool(vector_indices(table) or table.count_rows() < MIN_ROWS_FOR_VECTOR_INDEX)


def warm_vector_index(table: Any) -> None:
    """Loads the vector index, if there is one."""
    for name in vector_indices(table):
        table.prewarm_index(name)


def vector_indices(table: Any) -> list[str]:
    """Returns the names of the indices of the vectors: one, or none if a search compares all vectors."""
    return [index.name for index in table.list_indices() if index.columns == ["vector"]]
