"""The rows that a memory's table has, by digests, and the vectors of a build: known, cached, embedded or given ones."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import re
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from midthought.files.regular import atomic_path, storage_errors
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import Embedder, Progress, embed_in_parts, in_order, packed
from midthought.memory.rows import (
    SENTENCES,
    chunk_columns,
    chunks_of,
    embedding_of,
    may_be_of,
    sentences_of_rows,
    vectors_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

_DIGEST_BYTES = 16
_MAX_ROWS_PER_FILE = 2**24
_ROWS_PER_BATCH = 16_384
_STEMS_PER_QUERY = 50


class VectorCache:
    """The cached vectors of one embedding model. Files with other contents are ignored, and their texts are embedded again."""

    def __init__(self, folder: Path, model: str, dimension: int) -> None:
        self.dimension = dimension
        readable = re.sub(r"[^\w.-]+", "-", model)[:60]
        self._folder = folder / f"{readable}-{dimension}-{hashlib.sha256(model.encode()).hexdigest()[:8]}"
        self._record = np.dtype([("digest", f"V{_DIGEST_BYTES}"), ("vector", "<f4", (dimension,))])
        self._paths: list[Path] = []
        self._place: dict[bytes, int] = {}  # by digest: index of the file × _MAX_ROWS_PER_FILE + row
        for path in sorted(self._folder.glob("*.npy")):
            if (records := self._open(path)) is not None:
                self._note(path, records)

    def __contains__(self, text: str) -> bool:
        return digest_of(text) in self._place

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Stores vectors, float32 [N, D]; they are on disk when this returns."""
        records = np.zeros(len(texts), dtype=self._record)
        records["digest"] = np.frombuffer(b"".join(map(digest_of, texts)), dtype=f"V{_DIGEST_BYTES}")
        records["vector"] = vectors
        path = self._folder / f"{uuid.uuid4().hex}.npy"
        with storage_errors(self._folder), atomic_path(path) as partial, partial.open("wb") as file:
            file.write(_npy(records))  # an error of `np.save` lacks its number
            file.flush()
            os.fsync(file.fileno())
        self._note(path, records)

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors of cached texts, float32 [N, D]. Raises KeyError."""
        found = np.zeros((len(texts), *self._record["vector"].shape), dtype=np.float32)
        places = np.asarray([self._place[digest_of(text)] for text in texts], dtype=np.int64)
        files, rows = np.divmod(places, _MAX_ROWS_PER_FILE)
        for number in np.unique(files):
            here = files == number
            found[here] = np.load(self._paths[number], mmap_mode="r", allow_pickle=False)["vector"][rows[here]]
        return found

    def clear(self) -> None:
        """Deletes everything, including partial files of killed processes."""
        for path in [*self._paths, *self._folder.glob("*.partial")]:
            path.unlink(missing_ok=True)
        self._paths, self._place = [], {}
        for folder in (self._folder, self._folder.parent):
            with contextlib.suppress(OSError):  # other caches may be in it
                folder.rmdir()

    def _open(self, path: Path) -> Any:
        try:
            records = np.lib.format.open_memmap(path, mode="r")  # reads .npy files only, whatever the name
        except (ValueError, OSError, EOFError):
            return None
        return records if records.dtype == self._record and records.ndim == 1 else None

    def _note(self, path: Path, records: Any) -> None:
        first = len(self._paths) * _MAX_ROWS_PER_FILE
        self._paths.append(path)
        whole = np.ascontiguousarray(records["digest"]).tobytes()
        digests = [whole[start : start + _DIGEST_BYTES] for start in range(0, len(whole), _DIGEST_BYTES)]
        self._place.update(zip(digests, range(first, first + len(digests)), strict=True))


def default_folder(uri: str, table: str, is_local: bool) -> Path:
    """Returns the folder in which a memory's vectors are cached until its table has them."""
    if is_local:
        return Path(uri) / "embeddings"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "midthought" / "embeddings" / hashlib.sha256(f"{uri} {table}".encode()).hexdigest()[:16]


def _npy(records: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, records, allow_pickle=False)
    return buffer.getvalue()


def digest_of(text: str) -> bytes:
    """Digest that identifies a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()


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
    """Row id of one window with these displayed sentences, by their digest; empty if they have no vectors."""

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
        if chunk.embedded and SENTENCES in self.table.schema.names:
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
        known_ids = self._known.sentences
        row_ids = [known_ids.get(digest_of(chunk.transcript)) if chunk.embedded else None for chunk in chunks]
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
