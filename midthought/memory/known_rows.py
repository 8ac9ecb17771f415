"""The rows that a memory's table has, by digests, and the vectors of a build: known, embedded or given ones."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from midthought.memory.chunks import Chunk
from midthought.memory.embedding import Embedder, Progress, embed_in_parts, in_order
from midthought.memory.rows import (
    SENTENCES,
    chunk_columns,
    chunks_of,
    embedding_of,
    may_be_of,
    sentences_of_rows,
    vectors_of,
)
from midthought.memory.sentence_vectors import packed
from midthought.memory.vector_cache import VectorCache, digest_of

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_BATCH = 16_384
_STEMS_PER_QUERY = 50


@dataclass(slots=True)
class KnownRows:
    """Contents of the table, by digests: texts are not kept in memory, so a million rows fit."""

    table: Any = None
    """None: there is none."""
    chunks: dict[str, bytes] = field(default_factory=dict)
    """Digest of each chunk, by id."""
    rows: dict[bytes, int] = field(default_factory=dict)
    """Row id of one chunk with this embedded text, by the text's digest."""
    sentences: dict[bytes, int] = field(default_factory=dict)
    """Row id of one chunk with these displayed sentences, by their digest; empty if they have no vectors."""

    @classmethod
    def read(cls, table: Any, stems: Collection[str] | None = None) -> KnownRows:
        """Reads every row, or only the rows of the transcripts with these stems."""
        known = cls(table)
        for where in [None] if stems is None else _conditions(stems):
            query = table.search().select(list(chunk_columns(table.schema.names))).with_row_id(True)
            for batch in (query.where(where) if where else query).to_batches(batch_size=_ROWS_PER_BATCH):
                for chunk, row_id in zip(chunks_of(batch), batch.column("_rowid").to_pylist(), strict=True):
                    if stems is None or chunk.stem in stems:
                        known._add(chunk, row_id)
        return known

    def _add(self, chunk: Chunk, row_id: int) -> None:
        self.chunks[chunk.chunk_id] = chunk_digest(chunk)
        self.rows[digest_of(chunk.embedded_text)] = row_id
        if SENTENCES in self.table.schema.names:
            self.sentences[digest_of(chunk.transcript)] = row_id


class GivenVectors:
    """The vectors of rows that were embedded elsewhere."""

    def __init__(self, rows: pa.Table, where: str) -> None:
        """Raises MemoryStoreError, naming `where`, if the rows come from several models."""
        self.chunks = chunks_of(rows)
        self._vectors, self._sentences = vectors_of(rows), sentences_of_rows(rows)
        self._row_of = {chunk.chunk_id: row for row, chunk in enumerate(self.chunks)}
        self.embedding = embedding_of(rows, where) or ("", self._vectors.shape[1])

    def prepare(self, known: KnownRows, new: Sequence[Chunk], spoken: Sequence[Chunk]) -> int:
        """Nothing lacks vectors."""
        return 0

    def of(self, chunks: Sequence[Chunk]) -> np.ndarray:
        """Returns vectors of the chunks, float32 [N, D]."""
        return self._vectors[[self._row_of[chunk.chunk_id] for chunk in chunks]]

    def sentences(self, chunks: Sequence[Chunk]) -> list[bytes]:
        """Returns the packed vectors of each chunk's sentences; none if the rows have none."""
        return [self._sentences[self._row_of[chunk.chunk_id]] if self._sentences else b"" for chunk in chunks]


class EmbeddedVectors:
    """Vectors from the existing table, or from the cache, to which new texts are added."""

    def __init__(self, embedder: Embedder, cache: VectorCache, progress: Progress | None) -> None:
        self.embedding = embedder.name, embedder.dimension
        self._embedder = embedder
        self._cache = cache
        self._progress = progress
        self._known = KnownRows()

    def prepare(self, known: KnownRows, new: Sequence[Chunk], spoken: Sequence[Chunk]) -> int:
        """Embeds the texts of the `new` chunks and the sentences of the `spoken` ones that have no vectors, and returns their
        number. Each batch is cached before the next one starts."""
        self._known = known
        texts = {chunk.embedded_text for chunk in new}
        texts = {text for text in texts if digest_of(text) not in known.rows}
        silent = (chunk for chunk in spoken if digest_of(chunk.transcript) not in known.sentences)
        texts.update(sentence for chunk in silent for sentence in chunk.embedded_sentences)
        missing = in_order({text for text in texts if text not in self._cache})
        for part, vectors in embed_in_parts(missing, self._embedder, self._progress):
            self._cache.add(part, vectors)
        return len(missing)

    def of(self, chunks: Sequence[Chunk]) -> np.ndarray:
        """Returns vectors of the chunks, float32 [N, D]."""
        row_ids = [self._known.rows.get(digest_of(chunk.embedded_text)) for chunk in chunks]
        missing = [place for place, row_id in enumerate(row_ids) if row_id is None]
        vectors = np.zeros((len(chunks), self.embedding[1]), dtype=np.float32)
        vectors[missing] = self._cache.vectors([chunks[place].embedded_text for place in missing])
        for rows, stored, places in self._stored("vector", row_ids):
            vectors[stored] = vectors_of(rows)[places]
        return vectors

    def sentences(self, chunks: Sequence[Chunk]) -> list[bytes]:
        """Returns the packed vectors of each chunk's sentences."""
        row_ids = [self._known.sentences.get(digest_of(chunk.transcript)) for chunk in chunks]
        spoken = [
            chunk.embedded_sentences if row_id is None else [] for chunk, row_id in zip(chunks, row_ids, strict=True)
        ]
        texts = list(dict.fromkeys(itertools.chain.from_iterable(spoken)))
        content, size = packed(self._cache.vectors(texts)), self.embedding[1]
        vector_of = {text: content[row * size : (row + 1) * size] for row, text in enumerate(texts)}
        found = [b"".join(vector_of[text] for text in said) for said in spoken]
        for rows, stored, places in self._stored(SENTENCES, row_ids):
            known = sentences_of_rows(rows) or []
            for number, place in zip(stored, places, strict=True):
                found[number] = known[place]
        return found

    def _stored(self, column: str, row_ids: Sequence[int | None]) -> Iterator[tuple[pa.Table, list[int], np.ndarray]]:
        """Yields rows of the table with this column, the places of the ids that it has, and the row of each of them."""
        stored = [place for place, row_id in enumerate(row_ids) if row_id is not None]
        if stored:
            wanted = np.asarray([row_ids[place] for place in stored], dtype=np.int64)
            rows = self._known.table.take_row_ids(np.unique(wanted).tolist()).select([column]).with_row_id().to_arrow()
            order = np.argsort(rows["_rowid"].to_numpy())
            yield rows, stored, order[np.searchsorted(rows["_rowid"].to_numpy()[order], wanted)]


def all_chunks(table: Any, where: str | None = None) -> list[Chunk]:
    """Returns the chunks of a table that satisfy an SQL condition, unordered."""
    query = table.search().select(list(chunk_columns(table.schema.names)))
    return chunks_of((query.where(where) if where else query).to_arrow())


def transcripts_in(table: Any, stems: Collection[str]) -> list[Chunk]:
    """Returns the chunks of these transcripts in the table."""
    found = itertools.chain.from_iterable(all_chunks(table, where) for where in _conditions(stems))
    return [chunk for chunk in found if chunk.stem in stems]


def _conditions(stems: Collection[str]) -> list[str]:
    """Returns SQL conditions, one of which each chunk of these transcripts satisfies, and some others may."""
    ordered = sorted(stems)
    return [may_be_of(ordered[start : start + _STEMS_PER_QUERY]) for start in range(0, len(ordered), _STEMS_PER_QUERY)]


def chunk_digest(chunk: Chunk) -> bytes:
    """Digest of a chunk with all its fields."""
    return hashlib.blake2b(repr(chunk).encode("utf-8", "surrogatepass"), digest_size=16).digest()
