"""Writes Parquet files atomically and in batches of constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midthought.config.references import optional
from midthought.errors import DataError
from midthought.files.atomic import atomic_path

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 512


def write_parquet(path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes the rows, replaces an existing file and returns the number of rows. Raises DataError if there is none."""
    pa, parquet = optional("pyarrow", "data"), optional("pyarrow.parquet", "data")

    num_rows = 0
    rows = iter(rows)
    with atomic_path(path) as partial:
        with parquet.ParquetWriter(partial, schema) as writer:
            while batch := list(islice(rows, BATCH_ROWS)):
                writer.write_table(pa.Table.from_pylist(batch, schema))
                num_rows += len(batch)
        if not num_rows:
            raise DataError(f"{path}: there is nothing to write; it was left as it was")
    return num_rows
