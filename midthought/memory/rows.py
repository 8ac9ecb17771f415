"""The rows of a memory as an Arrow table, and as the Parquet file between the steps `embed` and `ingest`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from midthought.config.references import optional
from midthought.errors import MemoryStoreError
from midthought.files.atomic import atomic_path
from midthought.memory.chunks import Chunk
from midthought.models.precision import Precision

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_COLUMNS = ("id", "episode", "speaker", "transcript", "time", "chunk_id")
COLUMNS = (*CHUNK_COLUMNS, "embedding_model", "embedding_dimension", "vector")
"""`id` is the chunk's id, `chunk_id` its number within the episode, `vector` a fixed-size list of float32."""
WINDOW_COLUMNS = ("turns", "embedded", "times")
"""Only in a table with windows: `Chunk.turns` and `Chunk.times` as JSON, `Chunk.embedded`. In the database it also has a list
`speakers`, and `last_time` (`Chunk.latest_time`)."""
SENTENCES = "sentence_vectors"
"""Only in a table with windows: `sentence_vectors.packed` of `Chunk.embedded_sentences`."""


_PRECISION = b"midthought.embedding_precision"
_TEXT_COLUMNS = ("id", "episode", "speaker", "transcript", "time", "embedding_model", *WINDOW_COLUMNS, "last_time")
_KINDS = {
    **dict.fromkeys(_TEXT_COLUMNS, r"(dictionary<values=)?(large_)?string.*"),
    **dict.fromkeys(("chunk_id", "embedding_dimension"), r"u?int\d+"),
    "vector": r"(fixed_size_)?list<.*: (halffloat|float|double).*>(\[\d+\])?",
    "speakers": r"list<.*: (large_)?string.*>",
    SENTENCES: r"(large_)?binary",
}
"""Regular expressions for the types of columns, as Arrow prints them."""
_BATCH_ROWS = 16_384
_BATCH_BYTES = 2**27
"""A batch of a file has vectors of at most this size, or one row."""
_SPARE_BYTES = 2**26
_MAX_EXPANSION = 64
"""A file may need this many times its size in memory, and `_SPARE_BYTES`: vectors are not compressible, texts about 5 times."""


def rows_of(
    chunks: Sequence[Chunk],
    vectors: np.ndarray,
    embedding_model: str,
    precision: Precision | None = None,
    has_windows: bool | None = None,
    sentences: Sequence[bytes] | None = None,
) -> pa.Table:
    """Returns one row per chunk, in order; `vectors` is float32 [N, D], computed in `precision`.

    `has_windows`: whether there are columns for windows; None: if one of these chunks is a window. `sentences`: the column
    `SENTENCES`, only with windows.
    """
    pa = optional("pyarrow", "memory")
    dimension = vectors.shape[1]
    texts = {
        "id": [chunk.chunk_id for chunk in chunks],
        "episode": [chunk.episode for chunk in chunks],
        "speaker": [chunk.speaker for chunk in chunks],
        "transcript": [chunk.transcript for chunk in chunks],
        "time": [chunk.time for chunk in chunks],
    }
    has_windows = are_windows(chunks) if has_windows is None else has_windows
    columns = {
        **{name: pa.array(column, pa.string()) for name, column in texts.items()},
        "chunk_id": pa.array([chunk.number for chunk in chunks], pa.int64()),
        "embedding_model": pa.array([embedding_model] * len(chunks), pa.string()),
        "embedding_dimension": pa.array([dimension] * len(chunks), pa.int64()),
        "vector": vector_column(vectors),
    }
    if has_windows:
        columns |= {
            "turns": pa.array([json.dumps(chunk.turns, ensure_ascii=False) for chunk in chunks], pa.string()),
            "embedded": pa.array([chunk.embedded for chunk in chunks], pa.string()),
            "speakers": pa.array([list(chunk.speakers) for chunk in chunks], pa.list_(pa.string())),
            "times": pa.array([json.dumps(chunk.times) for chunk in chunks], pa.string()),
            "last_time": pa.array([chunk.latest_time for chunk in chunks], pa.string()),
        }
    if sentences is not None:
        columns[SENTENCES] = pa.array(sentences, pa.large_binary())
    return pa.table(columns, metadata={_PRECISION: precision} if precision else None)


def are_windows(chunks: Iterable[Chunk]) -> bool:
    """Whether one of the chunks needs the columns of windows."""
    return any(chunk.turns or chunk.embedded for chunk in chunks)


def vector_column(vectors: np.ndarray) -> pa.FixedSizeListArray:
    """Returns float32 vectors [N, D] as a column."""
    pa = optional("pyarrow", "memory")
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def precision_of(schema: pa.Schema) -> Precision:
    """Returns the precision that was passed to `rows_of`; float32 if it is unknown."""
    return "bfloat16" if (schema.metadata or {}).get(_PRECISION) == b"bfloat16" else "float32"


def chunks_of(rows: pa.Table) -> list[Chunk]:
    """Returns the chunks of such rows, in order."""
    names = chunk_columns(rows.schema.names)
    require_values(rows, names)
    chunks = []
    for row in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        chunk_id, episode, speaker, transcript, time, number, *window = row
        turns, embedded, times = window or ("[]", "", "[]")
        stem = chunk_id.removesuffix(f"_{number}")
        chunks.append(
            Chunk(
                chunk_id,
                episode,
                stem,
                speaker,
                transcript,
                time,
                number,
                places_of_json(turns),
                embedded,
                places_of_json(times),
            )
        )
    return chunks


def chunk_columns(names: Collection[str]) -> tuple[str, ...]:
    """Returns which of a table's columns `chunks_of` reads: memories without windows have fewer."""
    return (*CHUNK_COLUMNS, *(WINDOW_COLUMNS if {*WINDOW_COLUMNS} <= {*names} else ()))


def places_of_json(text: str) -> tuple[tuple[int, str], ...]:
    """Returns `Chunk.turns` or `Chunk.times` from their columns. Raises `MemoryStoreError` if they hold anything else."""
    try:
        places = tuple((start, said) for start, said in json.loads(text))
    except (ValueError, TypeError, RecursionError):
        places = ((0, None),)
    if not all(type(start) is int and isinstance(said, str) for start, said in places):
        raise MemoryStoreError(
            f"a row has the turns or times {text!r:.80}, which no build writes; build the memory again"
        )
    return places


def vectors_of(rows: pa.Table) -> np.ndarray:
    """Returns the vectors of such rows, float32 [N, D]."""
    vectors = rows.column("vector").combine_chunks()
    flat = vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return flat.reshape(len(rows), -1) if len(rows) else np.zeros((0, vectors.type.list_size), dtype=np.float32)


def sentences_of_rows(rows: pa.Table) -> list[bytes] | None:
    """Returns the column `SENTENCES` of such rows, None if there is none."""
    return [each or b"" for each in rows.column(SENTENCES).to_pylist()] if SENTENCES in rows.schema.names else None


def require_columns(schema: pa.Schema, where: str) -> None:
    """Raises MemoryStoreError, naming `where`, if columns are missing (of windows: some of them) or of other types."""
    names = schema.names
    of_windows = (*WINDOW_COLUMNS, SENTENCES)
    needed = [*COLUMNS, *(of_windows if {*of_windows} & {*names} else ())]
    if missing := [name for name in needed if name not in names]:
        raise MemoryStoreError(
            f"{where} is not a memory: it lacks {', '.join(missing)}; give another place or table name"
        )
    for name in names:
        if (kind := _KINDS.get(name)) and not re.fullmatch(kind, found := str(schema.field(name).type)):
            raise MemoryStoreError(
                f"{where} is not a memory: its column {name!r} is of the type {found}; give another place or table name"
            )


def require_values(rows: pa.Table, names: Collection[str]) -> None:
    """Raises MemoryStoreError if a row lacks one of these values."""
    for name in names:
        if rows.column(name).null_count:
            raise MemoryStoreError(
                f"a row has no value in the column {name!r}, which no build writes; build the memory again"
            )


def embedding_of(rows: pa.Table, where: str) -> tuple[str, int] | None:
    """Returns the model and dimension of the rows' vectors, None if there are no rows.

    Raises MemoryStoreError, naming `where`, if the rows come from several models.
    """
    require_values(rows, ("embedding_model", "embedding_dimension"))
    names, sizes = (rows.column(name).unique().to_pylist() for name in ("embedding_model", "embedding_dimension"))
    if len(names) > 1 or len(sizes) > 1:
        raise MemoryStoreError(f"{where} has rows of several embedding models ({', '.join(names)}); rebuild it")
    return (names[0], sizes[0]) if names else None


def write_rows(rows: pa.Table, path: str | Path) -> None:
    """Writes rows to a Parquet file, atomically."""
    optional("pyarrow", "memory")
    import pyarrow.parquet as parquet

    columns = [name for name in rows.column_names if name != "speakers"]  # `rows_of` adds it again
    with atomic_path(path) as partial:
        parquet.write_table(rows.select(columns), partial)


def read_rows(path: str | Path) -> pa.Table:
    """Reads a file of `write_rows` in batches. Raises MemoryStoreError if it is not such a file.

    A file that repeats a long text or vector in every row is refused before it takes memory.
    """
    pa = optional("pyarrow", "memory")
    import pyarrow.parquet as parquet

    if not Path(path).is_file():
        raise MemoryStoreError(f"{path}: there is no such file; write it with 'midthought memory embed'")
    try:
        schema = parquet.read_schema(path)
        require_columns(schema, str(path))
        names = schema.names
        with parquet.ParquetFile(path, read_dictionary=[name for name in _TEXT_COLUMNS if name in names]) as file:
            rows = _read_batches(file, Path(path))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise MemoryStoreError(f"{path}: not a file of embedded chunks ({reason}); write it again") from None
    embedding_of(rows, str(path))
    return rows


def _read_batches(file: Any, path: Path) -> pa.Table:
    """Returns all rows. Texts are read as dictionaries, which hold a repeated text once, and are measured before they are
    decoded."""
    pa = optional("pyarrow", "memory")
    schema = file.schema_arrow
    names = [*COLUMNS, *chunk_columns(schema.names)[len(CHUNK_COLUMNS) :], *({SENTENCES} & set(schema.names))]
    texts = [name for name in _TEXT_COLUMNS if name in names]
    max_bytes = _SPARE_BYTES + _MAX_EXPANSION * path.stat().st_size
    num_bytes = 4 * _num_vector_values(file.metadata)
    row_bytes = num_bytes // max(1, file.metadata.num_rows)
    batches = []
    for batch in _batches(file, names, row_bytes) if num_bytes <= max_bytes else ():
        num_bytes += sum(_num_bytes(batch.column(name)) for name in names if name in (*texts, SENTENCES))
        if num_bytes > max_bytes:
            break
        columns = [column.dictionary_decode() if hasattr(column, "dictionary") else column for column in batch]
        batches.append(pa.record_batch(columns, names=names))
    if num_bytes > max_bytes:
        raise MemoryStoreError(
            f"{path}: its rows need more than {max_bytes / 2**20:,.0f} MiB of memory, {_MAX_EXPANSION} times the file and more; "
            "embedded chunks do not repeat so much: write it again with 'midthought memory embed'"
        )
    plain = [(name, pa.string() if name in texts else schema.field(name).type) for name in names]
    return pa.Table.from_batches(batches, pa.schema(plain, metadata=schema.metadata))


def _num_vector_values(metadata: Any) -> int:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    return sum(column.num_values for column in columns if column.path_in_schema.partition(".")[0] == "vector")


def _batches(file: Any, names: list[str], row_bytes: int) -> Iterator[pa.RecordBatch]:
    num_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))
    return iter(file.iter_batches(batch_size=num_rows, columns=names))


def _num_bytes(column: pa.Array) -> int:
    """Returns the size of a column of texts, each of which counts as often as it occurs."""
    if not hasattr(column, "dictionary"):
        return int(column.nbytes)
    import pyarrow.compute as compute

    lengths = compute.binary_length(column.dictionary)
    return int(compute.sum(lengths.take(column.indices)).as_py() or 0)
