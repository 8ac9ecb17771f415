"""Embeds and writes what a build changes (`changes`). Handles the database only as rows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from midthought.errors import MemoryStoreError
from midthought.memory.changes import BuildReport, Changes, KnownRows, compare
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import Embedder, MeasuredEmbedder, Progress, embed_in_parts, in_order
from midthought.memory.indices import is_wholly_indexed
from midthought.memory.rows import SENTENCES, precision_of, rows_of, sentences_of_rows, vectors_of
from midthought.memory.sentence_vectors import packed
from midthought.memory.table import TableLocation, TableSnapshot
from midthought.memory.vector_cache import VectorCache, digest_of
from midthought.models.precision import Precision, PrecisionChoice

if TYPE_CHECKING:
    import pyarrow as pa

VectorsOf = Callable[[Sequence[Chunk]], np.ndarray]
"""Returns vectors of chunks, float32 [N, D]."""
SentencesOf = Callable[[Sequence[Chunk]], list[bytes]]
"""Returns the packed vectors of each chunk's sentences (`sentence_vectors`)."""


@dataclass(frozen=True, slots=True)
class NewVectors:
    """Source of the vectors of a build."""

    of: VectorsOf
    precision: Precision
    """Precision of the vectors; float32 if unknown."""
    num_embedded: int = 0
    choice: PrecisionChoice | None = None
    sentences: SentencesOf | None = None
    """None: there are no windows."""

    @classmethod
    def of_rows(cls, rows: pa.Table, chunks: Sequence[Chunk]) -> NewVectors:
        """The vectors of rows whose chunks are these, in the same order."""
        vectors, stored = vectors_of(rows), sentences_of_rows(rows)
        row_of = {chunk.chunk_id: row for row, chunk in enumerate(chunks)}
        return cls(
            lambda part: vectors[[row_of[chunk.chunk_id] for chunk in part]],
            precision_of(rows.schema),
            sentences=None if stored is None else lambda part: [stored[row_of[chunk.chunk_id]] for chunk in part],
        )


_ROWS_PER_BATCH = 16_384


Prepare = Callable[[TableSnapshot | None, KnownRows, Changes, bool], NewVectors]
"""Returns the vectors of the changes; takes whether the table is updated in place, last."""


def upsert(
    location: TableLocation,
    opened: TableSnapshot | None,
    wanted: Sequence[Chunk],
    stems: Collection[str] | None,
    embedding: tuple[str, int],
    prepare: Prepare,
    *,
    replace: bool,
) -> BuildReport:
    """Makes the table, or its transcripts with these stems, hold exactly the wanted chunks; writes nothing if it does so already.
    The caller is the only writer. Raises as `Changes.require_allowed` without `replace`."""
    started = time.perf_counter()
    known, changes, can_update = compare(opened, wanted, stems)
    if not replace and opened:
        changes.require_allowed(location.uri, opened.table, stems)
    new = None
    if opened is None or changes.any:
        new = prepare(opened, known, changes, can_update)
        write_changes(location, opened, changes, new, embedding, can_update)
    elif not is_wholly_indexed(opened.table):
        location.index()
    seconds = time.perf_counter() - started
    return changes.report(new.num_embedded if new else 0, seconds, new.choice if new else None)


def write_changes(
    location: TableLocation,
    opened: TableSnapshot | None,
    changes: Changes,
    new: NewVectors,
    embedding: tuple[str, int],
    can_update: bool,
) -> None:
    """Makes the table hold the wanted chunks: updates it in place (`can_update`), or rewrites it."""
    is_update = can_update and opened is not None and new.precision == opened.precision
    has_windows = opened.has_windows if is_update and opened else changes.has_windows
    how = new, embedding[0], has_windows
    schema = _rows([], np.zeros((0, embedding[1]), np.float32), *how).schema
    if is_update:
        location.change(changes.removed, batches_of(changes.new, *how), schema)
    else:
        location.write(batches_of(changes.wanted, *how), schema)


class VectorSource:
    """Vectors of texts: from the existing table, or from the cache, to which new texts are added."""

    def __init__(self, table: Any, known: KnownRows, cache: VectorCache) -> None:
        self._table = table
        self._rows = known.rows
        self._sentences = known.sentences
        self._cache = cache

    def embed_missing(
        self, chunks: Sequence[Chunk], spoken: Sequence[Chunk], embedder: Embedder, progress: Progress | None
    ) -> int:
        """Embeds the texts of `chunks` and the sentences of `spoken` that have no vectors, and returns their number. Each
        batch is cached before the next one starts."""
        texts = {chunk.embedded_text for chunk in chunks}
        texts = {text for text in texts if digest_of(text) not in self._rows}
        new = (chunk for chunk in spoken if digest_of(chunk.transcript) not in self._sentences)
        texts.update(sentence for chunk in new for sentence in chunk.embedded_sentences)
        missing = in_order({text for text in texts if text not in self._cache})
        for part, vectors in embed_in_parts(missing, embedder, progress):
            self._cache.add(part, vectors)
        return len(missing)

    def __call__(self, chunks: Sequence[Chunk]) -> np.ndarray:
        """Returns vectors of the chunks, float32 [N, D]."""
        row_ids = np.asarray([self._rows.get(digest_of(chunk.embedded_text), -1) for chunk in chunks], dtype=np.int64)
        missing = np.flatnonzero(row_ids < 0).tolist()
        cached = self._cache.vectors([chunks[number].embedded_text for number in missing])
        vectors = np.zeros((len(chunks), cached.shape[1]), dtype=np.float32)
        vectors[missing] = cached
        stored = np.flatnonzero(row_ids >= 0)
        if len(stored):
            rows, places = self._stored("vector", row_ids[stored])
            vectors[stored] = vectors_of(rows)[places]
        return vectors

    def sentences(self, chunks: Sequence[Chunk]) -> list[bytes]:
        """Returns the packed vectors of each chunk's sentences."""
        row_ids = np.asarray([self._sentences.get(digest_of(chunk.transcript), -1) for chunk in chunks], dtype=np.int64)
        found = [b""] * len(chunks)
        missing = {number: chunks[number].embedded_sentences for number in np.flatnonzero(row_ids < 0).tolist()}
        sentences = list(dict.fromkeys(itertools.chain.from_iterable(missing.values())))
        content, size = packed(self._cache.vectors(sentences)), self._cache.dimension
        vector_of = {sentence: content[row * size : (row + 1) * size] for row, sentence in enumerate(sentences)}
        for number, said in missing.items():
            found[number] = b"".join(vector_of[sentence] for sentence in said)
        stored = np.flatnonzero(row_ids >= 0)
        if len(stored):
            rows, places = self._stored(SENTENCES, row_ids[stored])
            known = sentences_of_rows(rows) or []
            for number, place in zip(stored.tolist(), places.tolist(), strict=True):
                found[number] = known[place]
        return found

    def _stored(self, column: str, row_ids: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        """Returns rows of the table with this column, and the row of each id in them."""
        rows = self._table.take_row_ids(np.unique(row_ids).tolist()).select([column]).with_row_id().to_arrow()
        order = np.argsort(rows["_rowid"].to_numpy())
        return rows, order[np.searchsorted(rows["_rowid"].to_numpy()[order], row_ids)]


def caches_of(embedder: Embedder, folder: Path) -> dict[Precision, VectorCache]:
    """Returns the embedder's vector caches in `folder`, by precision; vectors of unknown precision count as float32."""
    plain = VectorCache(folder, embedder.name, embedder.dimension)
    if not isinstance(embedder, MeasuredEmbedder):
        return {"float32": plain}
    return {"float32": plain, "bfloat16": VectorCache(folder, f"{embedder.name} bfloat16", embedder.dimension)}


def with_settled_precision(
    embedder: Embedder, known: Precision | None, caches: Mapping[Precision, VectorCache], texts: Sequence[str]
) -> tuple[Embedder, Precision]:
    """Returns the embedder in one precision: that of the existing vectors (`known`), else its own, else that of most
    cached texts (of an interrupted build), else the one that it chooses."""
    if not isinstance(embedder, MeasuredEmbedder):
        return embedder, "float32"
    precision = known or embedder.precision
    nums_kept = {name: sum(text in cache for text in texts) for name, cache in caches.items()}
    if precision is None and any(nums_kept.values()):
        precision = max(nums_kept.items(), key=lambda item: item[1])[0]
    own = embedder.in_precision(precision)
    return own, own.settle(texts)


def embed_new(
    uri: str,
    opened: TableSnapshot | None,
    known: KnownRows,
    changes: Changes,
    can_update: bool,
    embedder: Embedder,
    caches: Mapping[Precision, VectorCache],
    progress: Progress | None,
) -> NewVectors:
    """Embeds the texts that have no vector yet. Raises `MemoryStoreError` if the embedder is set to another precision than the
    stored vectors have. A table that is updated in place (`can_update`) keeps its columns."""
    stored = None
    if opened is not None and opened.embedding is not None and isinstance(embedder, MeasuredEmbedder):
        stored = opened.precision
        if embedder.dtype not in ("auto", stored):
            raise MemoryStoreError(
                f"{uri}: its vectors were computed in {stored}, not in {embedder.dtype}; remove ?dtype={embedder.dtype}, or "
                "build in another folder"
            )
    texts = in_order({chunk.embedded_text for chunk in changes.new})
    own, precision = with_settled_precision(embedder, stored, caches, texts)
    vectors = VectorSource(opened and opened.table, known, caches[precision])
    has_windows = opened.has_windows if can_update and opened else changes.has_windows
    spoken = (changes.new if can_update else changes.wanted) if has_windows else []
    num_embedded = vectors.embed_missing(changes.new, spoken, own, progress)
    sentences = vectors.sentences if has_windows else None
    return NewVectors(vectors, precision, num_embedded, getattr(own, "choice", None), sentences)


def batches_of(
    chunks: Sequence[Chunk], new: NewVectors, embedding_model: str, has_windows: bool
) -> Iterator[pa.RecordBatch]:
    """Yields rows in the order of the chunks, computed lazily."""
    for start in range(0, len(chunks), _ROWS_PER_BATCH):
        part = chunks[start : start + _ROWS_PER_BATCH]
        yield from _rows(part, new.of(part), new, embedding_model, has_windows).to_batches()


def _rows(
    chunks: Sequence[Chunk], vectors: np.ndarray, new: NewVectors, embedding_model: str, has_windows: bool
) -> pa.Table:
    sentences = new.sentences and new.sentences(chunks)
    return rows_of(chunks, vectors, embedding_model, new.precision, has_windows, sentences)
