"""Texts in files of any kind, in bounded memory: as they are, as a transcript, or in Parquet. Does not depend on what they
mean."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from midthought.errors import StorageError, TranscriptError
from midthought.memory.transcripts import read_transcript
from midthought.references import optional
from midthought.regular_files import open_regular

BYTES_AT_ONCE = 1 << 22
_TAIL_LETTERS = 1 << 10
_MAGIC = b"PAR1"
_ROWS_PER_BATCH = 1_024
_MAX_COLUMN_BYTES = 1 << 29
"""Of a column of texts in one row group, uncompressed: a page may be as large."""


def texts_in_file(path: Path) -> Iterator[str]:
    """Yields the texts of a file in parts; each part of a long text begins with the end of the one before. Of a file that is
    no Parquet, first all of it, as UTF-8, then the turns if it is a transcript, which may be in another encoding or have
    other signs between the words. Raises `OSError` if it cannot be read."""
    if is_parquet(path):
        for text in _texts_in_parquet(path):
            yield text[:BYTES_AT_ONCE]
            starts = range(BYTES_AT_ONCE, len(text), BYTES_AT_ONCE)
            yield from (text[start - _TAIL_LETTERS : start + BYTES_AT_ONCE] for start in starts)
        return
    decoder, text = codecs.getincrementaldecoder("utf-8")("ignore"), ""
    with open_regular(path) as file:
        while part := file.read(BYTES_AT_ONCE):
            text += decoder.decode(part)
            yield text
            text = text[-_TAIL_LETTERS:]
    with contextlib.suppress(TranscriptError):
        yield from (turn.text for turn in read_transcript(path).turns)


def is_parquet(path: Path) -> bool:
    """Whether a file starts as Parquet does, or is named so."""
    with open_regular(path) as file:
        start = file.read(len(_MAGIC))
    return start == _MAGIC or (path.suffix.lower() == ".parquet" and bool(start))


def _texts_in_parquet(path: Path) -> Iterator[str]:
    """Yields the texts of all columns, nested ones as well; one that several rows repeat may be yielded once.

    Columns are read as dictionaries, which hold a repeated text once, so that a small file cannot fill the memory. Raises
    `StorageError` if the file is damaged, encrypted or too large, perhaps after some texts.
    """
    pa = optional("pyarrow", "memory")
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = _text_columns(file, path)
        with parquet.ParquetFile(path, read_dictionary=names) as file:
            before = frozenset[int]()
            for batch in file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=names) if names else ():
                seen = set[int]()
                for text in (text for column in batch for text in _texts(column)):
                    if (key := hash(text)) not in before and key not in seen:
                        yield text
                    seen.add(key)
                before = frozenset(seen)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StorageError(f"{path}: it cannot be read as Parquet ({reason})") from None


def _text_columns(file: Any, path: Path) -> list[str]:
    """Returns the paths of the columns of texts and bytes."""
    metadata = file.metadata
    places = [at for at in range(len(file.schema)) if file.schema.column(at).physical_type == "BYTE_ARRAY"]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [group.column(at).total_uncompressed_size for group in groups for at in places]
    if max(sizes, default=0) > _MAX_COLUMN_BYTES:
        raise StorageError(f"{path}: a column has more than {_MAX_COLUMN_BYTES >> 20} MiB in one row group")
    return [file.schema.column(at).path for at in places]


def _texts(column: Any) -> Iterator[str]:
    """Yields the texts of an Arrow array, each distinct one of a dictionary once."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        yield from _texts(column.dictionary.take(column.indices.unique().drop_null()))
    elif pa.types.is_struct(kind):
        for part in column.flatten():
            yield from _texts(part)
    elif pa.types.is_map(kind):
        yield from _texts(column.keys)
        yield from _texts(column.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _texts(column.flatten())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield from (value.as_py() for value in column if value.is_valid)
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        yield from (value.as_py().decode("utf-8", "ignore") for value in column if value.is_valid)
