"""The memory: chunks with their vectors in a LanceDB table, searched by words, by meaning, or by both.

The table is the record, and any LanceDB client can read and search it. Searches here rank a copy in memory (ranking):
at the size of podcasts that is many times faster than a query to the table, exact, and always in the same order.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from midthought.errors import MemoryStoreError, MissingExtraError, SettingsError, near_names
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import Embedder, Progress, embed_texts, load_embedder
from midthought.memory.ranking import Ranking, WordIndex, fuse, fusion_depth, rank_vectors
from midthought.memory.rows import chunks_of, embedding_of, rows_of, vectors_of

if TYPE_CHECKING:
    import pyarrow as pa

SearchMode = Literal["hybrid", "vector", "full_text"]

_VERSION_LIFETIME = timedelta(hours=1)  # another process may still be reading the table as it was


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a search found. `score` is BM25, cosine or reciprocal-rank fusion, by the mode of the search."""

    chunk_id: str
    episode: str
    speaker: str
    transcript: str
    time: str
    score: float


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did. A chunk whose words, speaker, episode or time changed counts as removed and added."""

    num_added: int
    num_kept: int
    num_removed: int
    num_embedded: int
    """Texts that had to be embedded: words known from before keep their vector."""
    seconds: float

    @property
    def changes(self) -> bool:
        """True where the memory is another than before."""
        return self.num_added > 0 or self.num_removed > 0


class MemoryStore:
    """A memory in a LanceDB table. Open it with `MemoryStore.open`; searching is safe from many threads at once."""

    def __init__(self, uri: str, table: str, embedder: Embedder | None) -> None:
        self.uri = uri
        self.table = table
        self._embedder = embedder
        self._snapshot: _Snapshot | None = None
        self._lock = threading.RLock()

    @classmethod
    def open(cls, uri: str | Path, table: str = "transcripts", embedder: Embedder | None = None) -> MemoryStore:
        """The memory at `uri` (a folder, or what LanceDB takes), whether it is built already or not.

        Without an embedder MiniLM is taken, when first needed; full-text search needs none. Raises MemoryStoreError
        where the memory was built with another embedding model.
        """
        store = cls(str(uri), table, embedder)
        if embedder is not None:
            store._check_embedding(store._stored_embedding(), embedder)
        return store

    # -- building ----------------------------------------------------------------------------------------------

    def build(self, chunks: Sequence[Chunk], progress: Progress | None = None) -> BuildReport:
        """Make the memory hold exactly these chunks. Only unknown words are embedded; the write is one step."""
        return self._update(chunks, remove_others=True, progress=progress)

    def add(self, chunks: Sequence[Chunk], progress: Progress | None = None) -> int:
        """Add chunks to what is there; one of the same id is replaced where it differs. Returns how many are new."""
        return self._update(chunks, remove_others=False, progress=progress).num_added

    def ingest(self, rows: pa.Table) -> BuildReport:
        """Make the memory hold exactly these rows (`rows.rows_of`), embedded elsewhere."""
        started = time.perf_counter()
        embedding = embedding_of(rows, "the table of embedded chunks")
        chunks, vectors = chunks_of(rows), vectors_of(rows)
        with self._lock:
            snapshot = self._load() if self.is_built else None
            if snapshot and snapshot.embedding and embedding and snapshot.embedding != embedding:
                raise self._other_embedding(snapshot.embedding, embedding)
            row_of = {chunk.chunk_id: row for row, chunk in enumerate(chunks)}
            wanted = _by_id(chunks)
            known = _by_id(snapshot.chunks if snapshot else [])
            report = _report(known, wanted, 0, started)
            if report.changes or not self.is_built:
                self._write(list(wanted.values()), vectors[[row_of[chunk_id] for chunk_id in wanted]], embedding)
        return replace(report, seconds=time.perf_counter() - started)

    def _update(self, chunks: Sequence[Chunk], *, remove_others: bool, progress: Progress | None) -> BuildReport:
        started = time.perf_counter()
        with self._lock:
            embedder = self._require_embedder()
            embedding = (embedder.name, embedder.dimension)
            snapshot = (
                self._load() if self.is_built else _Snapshot([], np.zeros((0, embedder.dimension), np.float32), None)
            )
            self._check_embedding(snapshot.embedding, embedder)
            known = _by_id(snapshot.chunks)
            wanted = _by_id(chunks) if remove_others else known | _by_id(chunks)
            vectors, num_embedded = _vectors_for(list(wanted.values()), snapshot, embedder, progress)
            report = _report(known, wanted, num_embedded, started)
            if report.changes or not self.is_built:
                self._write(list(wanted.values()), vectors, embedding)
        return replace(report, seconds=time.perf_counter() - started)

    def _write(self, chunks: list[Chunk], vectors: np.ndarray, embedding: tuple[str, int] | None) -> None:
        """Replace the table's rows in one commit, by stem and number, and index the words for other clients."""
        database = self._connect()
        from lancedb.index import FTS

        order = _order(chunks)
        rows = rows_of([chunks[position] for position in order], vectors[order], embedding[0] if embedding else "")
        was_built = self.is_built
        try:
            table = database.create_table(self.table, rows, mode="overwrite" if was_built else "create")
            table.create_index("transcript", config=FTS(stem=False, remove_stop_words=False), replace=True)
            table.optimize(cleanup_older_than=_VERSION_LIFETIME)
        except BaseException:
            if not was_built:
                database.drop_table(self.table, ignore_missing=True)
                if "://" not in self.uri:
                    with contextlib.suppress(OSError):  # other tables stand in it
                        Path(self.uri).rmdir()
            raise
        finally:
            self._snapshot = None

    # -- searching ---------------------------------------------------------------------------------------------

    def search(self, query: str, k: int = 3, mode: SearchMode = "hybrid") -> list[Hit]:
        """The best `k` chunks, best first; equal scores in the order of ids.

        `full_text` ranks by words and their order (best for quotes), `vector` by meaning, `hybrid` by both. The query
        is plain words in every mode: no sign in it has power. Raises MemoryStoreError where nothing was built.
        """
        if mode not in get_args(SearchMode):
            raise SettingsError(f"mode {mode!r} is not a way to search. {near_names(mode, get_args(SearchMode))}")
        if k < 1:
            raise SettingsError(f"k must be at least 1, not {k}")
        snapshot = self._load()
        if not snapshot.chunks:
            return []
        if mode == "full_text":
            rows, scores = snapshot.words.rank(query, k)
        elif mode == "vector":
            rows, scores = self._rank_by_vector(snapshot, query, k)
        else:
            depth = fusion_depth(k)
            rankings = [snapshot.words.rank(query, depth), self._rank_by_vector(snapshot, query, depth)]
            rows, scores = fuse(rankings, k, len(snapshot.chunks))
        return [_hit(snapshot.chunks[row], score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]

    def _rank_by_vector(self, snapshot: _Snapshot, query: str, limit: int) -> Ranking:
        embedder = self._require_embedder()
        self._check_embedding(snapshot.embedding, embedder)
        return rank_vectors(snapshot.vectors, embedder.embed([query])[0], limit)

    def chunks(self) -> list[Chunk]:
        """Every chunk, in the order of ids."""
        return list(self._load().chunks)

    def __len__(self) -> int:
        return len(self._load().chunks) if self.is_built else 0

    # -- the table ---------------------------------------------------------------------------------------------

    @property
    def is_built(self) -> bool:
        """True where the table is there."""
        if self._snapshot is not None:
            return True
        if "://" not in self.uri and not Path(self.uri).is_dir():
            return False  # connecting would create the folder
        return self.table in self._connect().list_tables().tables

    def _connect(self) -> Any:
        try:
            import lancedb
        except ImportError:
            raise MissingExtraError("lancedb", "memory") from None
        if Path(self.uri).is_file():
            raise MemoryStoreError(f"{self.uri}: a memory is a folder, but this is a file; give another path")
        return lancedb.connect(self.uri)

    def _load(self) -> _Snapshot:
        """The table's rows, read once."""
        snapshot = self._snapshot
        if snapshot is not None:
            return snapshot
        with self._lock:
            if self._snapshot is None:
                if not self.is_built:
                    remedy = "build it with 'midthought memory build'"
                    raise MemoryStoreError(f"{self.uri}: there is no memory (table {self.table!r}); {remedy}")
                rows = self._connect().open_table(self.table).to_arrow()
                embedding = embedding_of(rows, f"{self.uri} (table {self.table!r})")
                self._snapshot = _Snapshot(chunks_of(rows), vectors_of(rows), embedding)
            return self._snapshot

    def _stored_embedding(self) -> tuple[str, int] | None:
        return self._load().embedding if self.is_built else None

    def _require_embedder(self) -> Embedder:
        with self._lock:
            if self._embedder is None:
                self._embedder = load_embedder()
            return self._embedder

    def _check_embedding(self, stored: tuple[str, int] | None, embedder: Embedder) -> None:
        if stored is not None and stored != (embedder.name, embedder.dimension):
            raise self._other_embedding(stored, (embedder.name, embedder.dimension))

    def _other_embedding(self, stored: tuple[str, int], given: tuple[str, int]) -> MemoryStoreError:
        return MemoryStoreError(
            f"{self.uri}: the memory was built with {stored[0]} ({stored[1]} dimensions), not with {given[0]} "
            f"({given[1]} dimensions); give the same embedding model, or build in another folder"
        )


class _Snapshot:
    """The rows of the table in memory. Never changed once made."""

    def __init__(self, chunks: list[Chunk], vectors: np.ndarray, embedding: tuple[str, int] | None) -> None:
        order = _order(chunks)
        self.chunks = [chunks[position] for position in order]
        self.vectors = vectors[order]
        self.embedding = embedding
        self.words = WordIndex([chunk.transcript for chunk in self.chunks])


def _vectors_for(
    chunks: Sequence[Chunk], snapshot: _Snapshot, embedder: Embedder, progress: Progress | None
) -> tuple[np.ndarray, int]:
    """Vectors of the chunks, float32 [N, D], and how many texts were embedded for them; known ones keep theirs."""
    row_of = {chunk.transcript: row for row, chunk in enumerate(snapshot.chunks)}
    new = sorted({chunk.transcript for chunk in chunks} - row_of.keys())
    vectors = np.concatenate([snapshot.vectors, embed_texts(new, embedder, progress)])
    row_of |= {text: len(snapshot.chunks) + position for position, text in enumerate(new)}
    return vectors[np.asarray([row_of[chunk.transcript] for chunk in chunks], dtype=np.int64)], len(new)


def _order(chunks: Sequence[Chunk]) -> list[int]:
    """Positions in the order of stem and number."""
    return sorted(range(len(chunks)), key=lambda position: (chunks[position].stem, chunks[position].number))


def _by_id(chunks: Iterable[Chunk]) -> dict[str, Chunk]:
    """Raises MemoryStoreError where two chunks carry one id and differ."""
    by_id: dict[str, Chunk] = {}
    for chunk in chunks:
        if by_id.setdefault(chunk.chunk_id, chunk) != chunk:
            raise MemoryStoreError(
                f"two chunks carry the id {chunk.chunk_id!r}; give the files of one name different names"
            )
    return by_id


def _report(known: dict[str, Chunk], wanted: dict[str, Chunk], num_embedded: int, started: float) -> BuildReport:
    num_kept = sum(known.get(chunk_id) == chunk for chunk_id, chunk in wanted.items())
    seconds = time.perf_counter() - started
    return BuildReport(len(wanted) - num_kept, num_kept, len(known) - num_kept, num_embedded, seconds)


def _hit(chunk: Chunk, score: float) -> Hit:
    return Hit(chunk.chunk_id, chunk.episode, chunk.speaker, chunk.transcript, chunk.time, score)
