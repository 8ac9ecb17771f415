"""Reads rows of JSON lines, CSV, Parquet, a list, or a `datasets` object, one at a time, with constant memory; a JSON list as a
whole.

Does not depend on tasks. An unreadable row is returned with its problem; an unreadable source is an error. CSV is read
with the standard library: pyarrow converts types and does not report every bad row with its line number.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from midthought.config.references import optional
from midthought.errors import DataError

MAX_STREAMED_ROWS = 1_000_000
"""Rows of a source without a length, such as `datasets.IterableDataset`; a longer one is an error, because it may never end."""
_PARQUET_BATCH_ROWS = 256
_PARQUET_BATCH_BYTES = 2**27
"""A batch holds at most this much, unless a single row is larger: a short file can name one long value in every row."""
_MAX_PARQUET_VALUE_BYTES = 2**32
"""Uncompressed size of a row group's column; a larger one is an error, because it may be a few compressed kilobytes."""


class RowError(DataError):
    """A row is not what it should be; the message says why."""


class Row(NamedTuple):
    """A row and its position, from 1. `problem` is the reason if it could not be read."""

    source: str
    unit: str
    number: int
    value: Any = None
    problem: str | None = None

    @property
    def where(self) -> str:
        return f"{self.source}, {self.unit} {self.number}"


def plain(value: Any) -> Any:
    """Returns the value; an array or scalar of numpy as a list or a number."""
    return value.tolist() if hasattr(value, "tolist") else value


def rows_of(source: Any) -> Iterator[Row]:
    """Returns the rows of a file (a path that ends in .jsonl, .json, .csv, .tsv or .parquet), or of any iterable.

    A `datasets.Dataset` in the format of pandas, Arrow or Polars is read as plain rows; a `ClassLabel` as its name. Raises
    DataError if the source is invalid: at once if it is not a source, later if a file is truncated or a stream has more than
    `MAX_STREAMED_ROWS` rows.
    """
    if isinstance(source, str | Path):
        return _file_rows(Path(source))
    if isinstance(source, Mapping):
        remedy = f"give one of its splits, such as dataset[{next(iter(source), 'train')!r}], or a list of rows"
        raise DataError(f"the data set is a mapping of {', '.join(map(str, source))}, not a list of rows; {remedy}")
    if hasattr(source, "columns"):
        remedy = "give its rows as a list of mappings: table.to_dict('records'), to_dicts() or to_pylist()"
        raise DataError(f"the data set is a table ({type(source).__name__}); {remedy}")
    if not isinstance(source, Iterable) or isinstance(source, bytes):
        raise DataError(f"the data set is {type(source).__name__}; give a path, a list of rows, or a `datasets` object")
    return _iterated(source)


def _iterated(source: Iterable[Any]) -> Iterator[Row]:
    data_format = getattr(source, "format", None)
    kind = data_format.get("type") if isinstance(data_format, Mapping) else None
    if kind in ("pandas", "arrow", "polars"):
        source = source.with_format(None)  # type: ignore[attr-defined]
    is_stream = not hasattr(source, "__len__")
    features = {} if kind == "custom" else getattr(source, "features", None) or {}  # custom: by a transform of the user
    names = {column: each.names for column, each in features.items() if type(each).__name__ == "ClassLabel"}
    for number, value in enumerate(source, start=1):
        if is_stream and number > MAX_STREAMED_ROWS:
            raise DataError(
                f"the data set is a stream ({type(source).__name__}) of more than {MAX_STREAMED_ROWS:,} rows; "
                "give a part of it, for example dataset.take(100_000)"
            )
        yield Row("the data set", "row", number, _named(value, names) if names else value)


def _named(value: Mapping[str, Any], names: Mapping[str, list[str]]) -> dict[str, Any]:
    places = {column: plain(value.get(column)) for column in names}
    return {**value, **{column: names[column][at] for column, at in places.items() if isinstance(at, int) and at >= 0}}


def _file_rows(path: Path) -> Iterator[Row]:
    if not path.is_file():
        hint = f"; load a data set of the hub first: datasets.load_dataset({str(path)!r})" if not path.suffix else ""
        raise DataError(f"{path}: there is no such file{hint}")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: {path.suffix or 'no suffix'} is not a known format; known: {' '.join(_READERS)}")
    return reader(path)


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                yield Row(path.name, "line", number, json.loads(line.decode()))
            except (ValueError, RecursionError) as error:
                yield Row(path.name, "line", number, problem=f"it is not JSON ({error}); write one object per line")


def _json_list(path: Path) -> Iterator[Row]:
    try:
        values = json.loads(path.read_bytes().removeprefix(codecs.BOM_UTF8).decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: it is not JSON ({error}); JSON lines need the suffix .jsonl") from None
    if not isinstance(values, list):
        remedy = "write [row, row, …] or JSON lines"
        raise DataError(f"{path}: it holds a {type(values).__name__}, not a list of rows; {remedy}")
    for number, value in enumerate(values, start=1):
        yield Row(path.name, "row", number, value)


def _separated_rows(path: Path) -> Iterator[Row]:
    # surrogates mark invalid UTF-8, so that one bad row does not end the file
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        try:
            header = next(reader, [])
            if len(set(header)) < len(header) or not any(header) or not _is_utf8(header):
                raise DataError(f"{path}: the first line must name the columns, each once, in UTF-8; it is {header!a}")
            before = reader.line_num
            for fields in reader:
                number, before = before + 1, reader.line_num
                value, problem = dict(zip(header, fields, strict=False)), None
                if len(fields) != len(header):
                    problem = f"it has {len(fields)} fields, the first line names {len(header)}"
                elif not _is_utf8(fields):
                    problem = "it is not UTF-8; save the file as UTF-8"
                if fields:
                    yield Row(path.name, "line", number, value, problem)
        except csv.Error as error:
            remedy = "repair that line, or write the data as JSON lines"
            raise DataError(f"{path}, line {reader.line_num}: {error}; {remedy}") from None


def _is_utf8(fields: list[str]) -> bool:
    try:
        "".join(fields).encode()
    except UnicodeEncodeError:
        return False
    return True


def _parquet(path: Path) -> Iterator[Row]:
    pa, pq = optional("pyarrow", "data"), optional("pyarrow.parquet", "data")
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_batch_rows(path, file.metadata)):
                for value in batch.to_pylist():
                    number += 1
                    yield Row(path.name, "row", number, value)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: it cannot be read as Parquet after row {number}: {error}") from None


def _batch_rows(path: Path, metadata: Any) -> int:
    """Returns the rows of a batch. A value is not longer than its column in a row group, uncompressed."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [[group.column(at).total_uncompressed_size for at in range(group.num_columns)] for group in groups]
    if max(map(max, filter(None, sizes)), default=0) > _MAX_PARQUET_VALUE_BYTES:
        raise DataError(f"{path}: a column has more than 4 GiB in one row group; write it with smaller row groups")
    longest_row = max(map(sum, sizes), default=0)
    return max(1, min(_PARQUET_BATCH_ROWS, _PARQUET_BATCH_BYTES // max(1, longest_row)))


_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_list,
    ".csv": _separated_rows,
    ".tsv": _separated_rows,
    ".parquet": _parquet,
}
