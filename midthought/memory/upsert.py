"""Computes what a build must embed and write: compares wanted chunks with existing rows. Handles the database only as rows."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from midthought.errors import MemoryStoreError
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import Embedder, MeasuredEmbedder, Progress, embed_in_parts, in_order
from midthought.memory.indices import word_indices
from midthought.memory.rows import (
    SENTENCES,
    chunk_columns,
    chunks_of,
    precision_of,
    rows_of,
    sentences_of_rows,
    vectors_of,
)
from midthought.memory.sentence_vectors import packed
from midthought.memory.sql_conditions import may_be_of
from midthought.memory.table import TableLocation, TableSnapshot
from midthought.memory.vector_cache import VectorCache, digest_of
from midthought.precision import Precision, PrecisionChoice

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
    """None: sentences get no vectors."""

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
_STEMS_PER_QUERY = 50
_MAX_CHANGED_SHARE = 0.2
_MAX_REMOVED_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Result of a build. A chunk with changed text, speaker, episode or time counts as removed and added."""

    num_added: int
    num_kept: int
    num_removed: int
    num_embedded: int
    """Texts that were embedded: known texts keep their vectors."""
    seconds: float
    precision: str | None = None
    """Description of the measurement that chose between float32 and bfloat16, if there was one."""

    @property
    def changes(self) -> bool:
        """Whether the memory was changed."""
        return self.num_added > 0 or self.num_removed > 0


@dataclass(slots=True)
class KnownRows:
    """Contents of the table, by digests: texts are not kept in memory, so a million rows fit."""

    chunks: dict[str, bytes] = field(default_factory=dict)
    """Digest of each chunk, by id."""
    rows: dict[bytes, int] = field(default_factory=dict)
    """Row id of one chunk with this embedded text, by the text's digest."""
    sentences: dict[bytes, int] = field(default_factory=dict)
    """Row id of one chunk with these displayed sentences, by their digest; empty if they have no vectors."""

    @classmethod
    def read(cls, table: Any, stems: Collection[str] | None = None) -> KnownRows:
        """Reads every row, or only the rows of the transcripts with these stems."""
        known, ordered = cls(), sorted(stems or ())
        parts = (ordered[start : start + _STEMS_PER_QUERY] for start in range(0, len(ordered), _STEMS_PER_QUERY))
        for where in [None] if stems is None else [may_be_of(part) for part in parts]:
            query = table.search().select(list(chunk_columns(table.schema.names))).with_row_id(True)
            batches = (query.where(where) if where else query).to_batches(batch_size=_ROWS_PER_BATCH)
            known._add(batches, stems, SENTENCES in table.schema.names)
        return known

    def _add(self, batches: Iterable[pa.RecordBatch], stems: Collection[str] | None, has_sentences: bool) -> None:
        for batch in batches:
            for chunk, row_id in zip(chunks_of(batch), batch.column("_rowid").to_pylist(), strict=True):
                if stems is not None and chunk.stem not in stems:
                    continue
                self.chunks[chunk.chunk_id] = chunk_digest(chunk)
                self.rows[digest_of(chunk.embedded_text)] = row_id
                if has_sentences:
                    self.sentences[digest_of(chunk.transcript)] = row_id


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes after which the table holds exactly the wanted chunks."""

    wanted: list[Chunk]
    """Ordered by stem and number."""
    new: list[Chunk]
    """Wanted chunks that the table lacks or has with other contents."""
    removed: list[str]
    """Ids that are in the table and not wanted."""
    replaced: list[str]
    """Ids that the table has with other contents."""
    num_known: int

    @classmethod
    def between(cls, known: KnownRows, wanted: Iterable[Chunk]) -> Changes:
        """Raises MemoryStoreError if two different chunks have the same id."""
        chunks = by_id(wanted)
        ordered = sorted(chunks.values(), key=chunk_order)
        new = [chunk for chunk in ordered if known.chunks.get(chunk.chunk_id) != chunk_digest(chunk)]
        removed = [chunk_id for chunk_id in known.chunks if chunk_id not in chunks]
        replaced = [chunk.chunk_id for chunk in new if chunk.chunk_id in known.chunks]
        return cls(ordered, new, removed, replaced, len(known.chunks))

    def require_allowed(self, uri: str, stems: Collection[str] | None) -> None:
        """Raises `MemoryStoreError` if another transcript would be removed, or, with `stems`, replaced."""
        if stems is None:
            self.require_kept(uri)
        else:
            self.require_same_transcripts(uri)

    def require_kept(self, uri: str) -> None:
        """Raises `MemoryStoreError` if chunks would be removed of transcripts that have no wanted chunk."""
        wanted = {chunk.stem for chunk in self.wanted}
        stems = [chunk_id.rpartition("_")[0] for chunk_id in self.removed]
        others = [stem for stem in stems if stem not in wanted]
        if not others:
            return
        names = list(dict.fromkeys(others))
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise MemoryStoreError(
            f"{uri}: {len(others):,} chunks of {len(names):,} other transcripts ({shown}) would be removed; build from a "
            "folder that has these transcripts as well, or at another path (--path, memory.path), or remove them: "
            "--replace, memory.replace=true, replace=True"
        )

    @property
    def any(self) -> bool:
        return bool(self.new or self.removed)

    @property
    def has_windows(self) -> bool:
        """Whether a wanted chunk needs the columns of windows."""
        return any(chunk.turns or chunk.embedded for chunk in self.wanted)

    def are_few(self, num_rows: int) -> bool:
        """Whether updating a table of so many rows in place is cheaper than rewriting it."""
        num_changed = len(self.new) + len(self.removed)
        return num_changed <= _MAX_CHANGED_SHARE * num_rows and len(self.removed) <= _MAX_REMOVED_AT_ONCE

    def require_same_transcripts(self, uri: str) -> None:
        """Raises `MemoryStoreError` if a transcript would be replaced with which the new one has no chunk in common."""
        new = {chunk.chunk_id for chunk in self.new}
        kept = {chunk.stem for chunk in self.wanted if chunk.chunk_id not in new}
        known = {chunk_id.rpartition("_")[0] for chunk_id in (*self.removed, *self.replaced)}
        if others := sorted(known - kept):
            raise MemoryStoreError(
                f"{uri}: another transcript in the memory is named {others[0]!r}; rename the file, or replace that transcript: "
                "--replace, replace=True"
            )

    def report(self, num_embedded: int, seconds: float, choice: PrecisionChoice | None) -> BuildReport:
        num_kept, words = len(self.wanted) - len(self.new), str(choice) if choice else None
        return BuildReport(len(self.new), num_kept, self.num_known - num_kept, num_embedded, seconds, words)


def compare(
    opened: TableSnapshot | None, wanted: Sequence[Chunk], stems: Collection[str] | None
) -> tuple[KnownRows, Changes, bool]:
    """Returns the existing rows, the changes, and whether to update the table in place.

    With `stems`, only those transcripts change: a large table's other rows are not read, a small one's are wanted, too. A table
    whose columns do not fit is rewritten.
    """
    if opened is None:
        return KnownRows(), Changes.between(KnownRows(), wanted), False
    can_update, num_rows = opened.is_large and bool(word_indices(opened.table)), opened.table.count_rows()
    if stems is not None and can_update:
        known = KnownRows.read(opened.table, stems)
        changes = Changes.between(known, wanted)
        if changes.are_few(num_rows) and (opened.has_windows or not changes.has_windows):
            return known, changes, True
    if stems is not None:
        wanted = [*(chunk for chunk in all_chunks(opened.table) if chunk.stem not in stems), *wanted]
    known = KnownRows.read(opened.table)
    changes = Changes.between(known, wanted)
    can_update = can_update and changes.has_windows == opened.has_windows
    return known, changes, can_update and changes.are_few(num_rows)


def write_changes(
    location: TableLocation,
    opened: TableSnapshot | None,
    changes: Changes,
    new: NewVectors,
    embedding: tuple[str, int],
    can_update: bool,
) -> None:
    """Makes the table hold the wanted chunks: updates it in place (`can_update`), or rewrites it."""
    is_update = (
        can_update
        and opened is not None
        and new.precision == opened.precision
        and (new.sentences is not None) == opened.has_sentences
    )
    has_windows = opened.has_windows if is_update and opened else changes.has_windows
    how = new, embedding[0], has_windows
    schema = _rows([], np.zeros((0, embedding[1]), np.float32), *how).schema
    if is_update:
        location.change(changes.removed, batches_of(changes.new, *how), schema)
    else:
        location.write(batches_of(changes.wanted, *how), schema)


def all_chunks(table: Any, where: str | None = None) -> list[Chunk]:
    """Returns the chunks of a table that satisfy an SQL condition, unordered."""
    query = table.search().select(list(chunk_columns(table.schema.names)))
    return chunks_of((query.where(where) if where else query).to_arrow())


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
    has_sentences = opened.has_sentences if can_update and opened else changes.has_windows
    spoken = (changes.new if can_update else changes.wanted) if has_sentences else []
    num_embedded = vectors.embed_missing(changes.new, spoken, own, progress)
    sentences = vectors.sentences if has_sentences else None
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


def by_id(chunks: Iterable[Chunk]) -> dict[str, Chunk]:
    """Returns the chunks by id. Raises MemoryStoreError if two different chunks have the same id."""
    found: dict[str, Chunk] = {}
    for chunk in chunks:
        if found.setdefault(chunk.chunk_id, chunk) != chunk:
            raise MemoryStoreError(
                f"two different chunks have the id {chunk.chunk_id!r}; rename files with the same name"
            )
    return found


def chunk_order(chunk: Chunk) -> tuple[str, int]:
    """Sort key of chunks."""
    return chunk.stem, chunk.number


def chunk_digest(chunk: Chunk) -> bytes:
    """Digest of a chunk with all its fields."""
    return hashlib.blake2b(repr(chunk).encode("utf-8", "surrogatepass"), digest_size=16).digest()
