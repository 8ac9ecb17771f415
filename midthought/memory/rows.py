"""The rows of a memory as an Arrow table, and as the Parquet file between the steps `embed` and `ingest`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from midthought.config.references import optional
from midthought.errors import MemoryStoreError, OutputPathError
from midthought.files.output_folder import not_ours
from midthought.files.regular import atomic_path, open_regular, require_no_special_file
from midthought.memory.chunks import Chunk

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_COLUMNS = ("id", "episode", "speaker", "transcript", "time", "chunk_id")
COLUMNS = (*CHUNK_COLUMNS, "embedding_model", "embedding_dimension", "vector")
"""`id` is the chunk's id, `chunk_id` its number within the episode, `vector` a fixed-size list of float32."""
WINDOW_COLUMNS = ("turns", "embedded", "times")
"""Only in a table with windows: `Chunk.turns` and `Chunk.times` as JSON, `Chunk.embedded`. In the database it also has a list
`speakers`."""
_WITHOUT_NULLS = {*COLUMNS, *WINDOW_COLUMNS}
SENTENCES = "sentence_vectors"
"""Only in a table with windows: `embedding.packed` of `Chunk.embedded_sentences`."""


def rows_of(
    chunks: Sequence[Chunk],
    vectors: np.ndarray,
    embedding_model: str,
    has_windows: bool | None = None,
    sentences: Sequence[bytes] | None = None,
) -> pa.Table:
    """Returns one row per chunk, in order; `vectors` is float32 [N, D].

    `has_windows`: whether there are columns for windows; None: if one of these chunks is a window. `sentences`: the column
    `SENTENCES`, only with windows.
    """
    pa = optional("pyarrow", "memory")
    dimension = vectors.shape[1]
    texts = {"id": [chunk.chunk_id for chunk in chunks]}
    texts |= {name: [getattr(chunk, name) for chunk in chunks] for name in CHUNK_COLUMNS[1:-1]}
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
        }
    if sentences is not None:
        columns[SENTENCES] = pa.array(sentences, pa.large_binary())
    return pa.table(columns)


def are_windows(chunks: Iterable[Chunk]) -> bool:
    """Whether one of the chunks needs the columns of windows."""
    return any(chunk.turns or chunk.embedded for chunk in chunks)


def vector_column(vectors: np.ndarray) -> pa.FixedSizeListArray:
    """Returns float32 vectors [N, D] as a column."""
    pa = optional("pyarrow", "memory")
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def chunks_of(rows: pa.Table) -> list[Chunk]:
    """Returns the chunks of such rows, in order."""
    names = chunk_columns(rows.schema.names)
    chunks = []
    for row in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        chunk_id, episode, speaker, transcript, time, number = row[: len(CHUNK_COLUMNS)]
        turns, embedded, times = row[len(CHUNK_COLUMNS) :] or ("[]", "", "[]")
        stem, spoken = chunk_id.removesuffix(f"_{number}"), (speaker, transcript, time, number)
        chunks.append(Chunk(chunk_id, episode, stem, *spoken, places_of_json(turns), embedded, places_of_json(times)))
    return chunks


def chunk_columns(names: Collection[str]) -> tuple[str, ...]:
    """Returns which of a table's columns `chunks_of` reads: memories without windows have fewer."""
    return (*CHUNK_COLUMNS, *(WINDOW_COLUMNS if {*WINDOW_COLUMNS} <= {*names} else ()))


def places_of_json(text: str) -> tuple[tuple[int, str], ...]:
    """Returns `Chunk.turns` or `Chunk.times` from their columns."""
    return tuple((start, said) for start, said in json.loads(text))


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
    has_windows = not {*WINDOW_COLUMNS, SENTENCES}.isdisjoint(schema.names)
    wanted = rows_of([], np.zeros((0, 1), np.float32), "", has_windows, [] if has_windows else None).schema
    needed = [*COLUMNS, *((*WINDOW_COLUMNS, SENTENCES) if has_windows else ())]
    if missing := [name for name in needed if name not in schema.names]:
        raise MemoryStoreError(
            f"{where} is not a memory: it lacks {', '.join(missing)}; give another place or table name"
        )
    for name in {*wanted.names} & {*schema.names}:
        found, kind = schema.field(name).type, wanted.field(name).type
        if found != kind and not (name == "vector" and getattr(found, "value_type", None) == kind.value_type):
            raise MemoryStoreError(
                f"{where} is not a memory: its column {name!r} is of the type {found}; give another place or table name"
            )


def embedding_of(rows: pa.Table, where: str) -> tuple[str, int] | None:
    """Returns the model and dimension of the rows' vectors, None if there are no rows.

    Raises MemoryStoreError, naming `where`, if the rows come from several models.
    """
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
    """Reads a file of `write_rows`. Raises MemoryStoreError if it is not such a file."""
    pa = optional("pyarrow", "memory")
    import pyarrow.parquet as parquet

    if not Path(path).is_file():
        raise MemoryStoreError(f"{path}: there is no such file; write it with 'midthought memory embed'")
    try:
        rows = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise MemoryStoreError(f"{path}: not a file of embedded chunks ({reason}); write it again") from None
    require_columns(rows.schema, str(path))
    if empty := next((name for name in rows.column_names if name in _WITHOUT_NULLS and rows[name].null_count), ""):
        raise MemoryStoreError(f"{path}: its column {empty!r} has rows without a value; write it again")
    embedding_of(rows, str(path))
    return rows


# -- conditions on rows in SQL


def is_among(column: str, values: Sequence[str]) -> str:
    """Returns `column IN ('…', …)`. Values cannot inject SQL: within a string only the quote is special, and it is doubled."""
    return f"{column} IN ({listed})" if (listed := _listed(values)) else "false"


def has_any(column: str, values: Sequence[str]) -> str:
    """Returns the condition that a list column has one of the values."""
    return f"array_has_any({column}, make_array({listed}))" if (listed := _listed(values)) else "false"


def may_be_of(stems: Iterable[str]) -> str:
    """Returns the condition that a chunk's id starts with one of the stems and `_`. The index of ids answers it.

    It also holds for longer stems: for `a_b_0` if `a` is asked for.
    """
    ranges = (f"(id >= {quoted(f'{stem}_')} AND id < {quoted(f'{stem}`')})" for stem in stems)
    return " OR ".join(ranges) or "false"


def quoted(value: str) -> str:
    """Returns an SQL string literal."""
    return "'" + value.replace("'", "''") + "'"


def _listed(values: Sequence[str]) -> str:
    """Leaves out lone surrogates: no column has them, and the query could not be encoded."""
    return ", ".join(quoted(value) for value in values if not any("\ud800" <= letter <= "\udfff" for letter in value))


def require_our_parquet(path: Path, columns: Collection[str]) -> None:
    """Raises `OutputPathError` if there is a folder, pipe, socket or device, or a file that is not Parquet with these columns, as
    the caller writes it. An empty file may be replaced. Raises `MissingExtraError` without pyarrow."""
    if path.is_dir():
        raise OutputPathError(f"{path} is a folder, not a file; give another path")
    require_no_special_file(path)
    if not path.is_file() or not path.stat().st_size:
        return
    arrow, parquet = optional("pyarrow", "data"), optional("pyarrow.parquet", "data")
    with (
        suppress(arrow.ArrowException, OSError, ValueError),
        open_regular(path) as file,
    ):  # a damaged file is none of ours
        if set(columns) <= set(parquet.read_schema(file).names):
            return
    raise not_ours(path)
