"""The memory: chunks with their vectors in a LanceDB table, searched by words, by meaning, or by both.

LanceDB ranks; this room writes the table whole, asks it, and keeps no copy of it.
"""

from __future__ import annotations

import contextlib
import platform
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from midthought.errors import MemoryStoreError, MissingExtraError, SettingsError, near_names
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import Embedder, Progress, embed_texts, load_embedder
from midthought.memory.rows import CHUNK_COLUMNS, chunks_of, embedding_of, require_columns, rows_of, vectors_of

if TYPE_CHECKING:
    import pyarrow as pa

SearchMode = Literal["hybrid", "vector", "full_text"]
_Choice = Callable[[dict[str, Chunk]], dict[str, Chunk]]  # from the chunks that are there to those that are wanted

_WORD_INDEX: dict[str, Any] = {
    "with_position": True, "stem": False, "remove_stop_words": False, "ascii_folding": True, "lower_case": True,
}  # fmt: skip
_BUILD_REMEDY = "build it with 'midthought memory build'"
_MIN_ROWS_FOR_VECTOR_INDEX = 50_000  # below it every vector is compared
_MIN_CANDIDATES = 20  # the same for every k up to 10, so that k does not change which rows come first
_VERSION_LIFETIME = timedelta(days=1)  # another process may still be reading the table as it was


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
        self._opened: _OpenedTable | None = None
        self._lock = threading.RLock()

    @classmethod
    def open(cls, uri: str | Path, table: str = "transcripts", embedder: Embedder | None = None) -> MemoryStore:
        """The memory at `uri` (a folder, or what LanceDB takes), whether it is built already or not.

        Without an embedder MiniLM is taken, when first needed; full-text search needs none. Raises MemoryStoreError
        where the memory was built with another embedding model.
        """
        store = cls(str(uri), table, embedder)
        if embedder is not None:
            store._check_embedding((embedder.name, embedder.dimension))
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the memory anew, where it lies."""
        uri = self.uri if "://" in self.uri else str(Path(self.uri).absolute())
        return _reopened, (uri, self.table, self._embedder, self.is_built)

    # -- building ----------------------------------------------------------------------------------------------

    def build(self, chunks: Sequence[Chunk], progress: Progress | None = None) -> BuildReport:
        """Make the memory hold exactly these chunks. Only unknown words are embedded; the write is one step."""
        return self._embed_and_replace(lambda known: _by_id(chunks), progress)

    def add(self, chunks: Sequence[Chunk], progress: Progress | None = None) -> int:
        """Add chunks to what is there; one of the same id is replaced where it differs. Returns how many are new."""
        return self._embed_and_replace(lambda known: known | _by_id(chunks), progress).num_added

    def ingest(self, rows: pa.Table) -> BuildReport:
        """Make the memory hold exactly these rows (`rows.rows_of`), embedded elsewhere."""
        require_columns(rows.column_names, "the table of embedded chunks")
        embedding = embedding_of(rows, "the table of embedded chunks")
        chunks, vectors = chunks_of(rows), vectors_of(rows)
        row_of = {chunk.chunk_id: row for row, chunk in enumerate(chunks)}
        return self._replace(
            lambda known: _by_id(chunks),
            embedding,
            lambda wanted: (vectors[[row_of[chunk.chunk_id] for chunk in wanted]], 0),
        )

    def _embed_and_replace(self, wanted_of: _Choice, progress: Progress | None) -> BuildReport:
        embedder = self._require_embedder()

        def vectors_for(chunks: list[Chunk]) -> tuple[np.ndarray, int]:
            rows = self._open_table().table.to_arrow() if len(self) else rows_of([], embedder.embed([]), "")
            return _vectors_for(chunks, rows, embedder, progress)

        return self._replace(wanted_of, (embedder.name, embedder.dimension), vectors_for)

    def _replace(
        self,
        wanted_of: _Choice,
        embedding: tuple[str, int] | None,
        vectors_for: Callable[[list[Chunk]], tuple[np.ndarray, int]],
    ) -> BuildReport:
        """Make the memory hold the chunks that are wanted; where it does so already, nothing is written."""
        started = time.perf_counter()
        with self._lock:
            self._check_embedding(embedding)
            known = _by_id(self.chunks()) if self.is_built else {}
            wanted = wanted_of(known)
            num_kept = sum(known.get(chunk_id) == chunk for chunk_id, chunk in wanted.items())
            num_embedded = 0
            if not num_kept == len(wanted) == len(known) or not (self.is_built and self._open_table().is_indexed):
                chunks = sorted(wanted.values(), key=_place)
                vectors, num_embedded = vectors_for(chunks)
                self._write(rows_of(chunks, vectors, embedding[0] if embedding else ""))
        seconds = time.perf_counter() - started
        return BuildReport(len(wanted) - num_kept, num_kept, len(known) - num_kept, num_embedded, seconds)

    def _write(self, rows: pa.Table) -> None:
        """Put these rows in the table's place and index them; where that fails, the memory is as it was before."""
        database = self._connect()
        from lancedb.index import FTS, IvfFlat

        old_version = self._open_table().table.version if self.is_built else None
        try:
            table = database.create_table(self.table, rows, mode="create" if old_version is None else "overwrite")
            table.create_index("transcript", config=FTS(**_WORD_INDEX))
            if len(rows) >= _MIN_ROWS_FOR_VECTOR_INDEX:
                table.create_index("vector", config=IvfFlat(distance_type="cosine"))
            table.optimize(cleanup_older_than=_VERSION_LIFETIME)
        except BaseException:
            if old_version is not None:
                database.open_table(self.table).restore(old_version)
            else:
                database.drop_table(self.table, ignore_missing=True)
                if "://" not in self.uri:
                    with contextlib.suppress(OSError):  # other tables stand in it
                        Path(self.uri).rmdir()
            raise
        finally:
            self._opened = None

    # -- searching ---------------------------------------------------------------------------------------------

    def search(self, query: str, k: int = 3, mode: SearchMode = "hybrid") -> list[Hit]:
        """The best `k` chunks, best first. The query is plain words in every mode: no sign in it has power.

        `full_text` ranks by words, and higher where the query stands in a row (best for quotes), `vector` by meaning,
        `hybrid` by the ranks of both. The same memory gives the same hits. Equal scores come in the order of ids; which
        of the equal ones come in where more than max(2 k, 20) compete is up to LanceDB, and so are their ranks in
        `hybrid`. Raises MemoryStoreError where nothing was built.
        """
        if mode not in get_args(SearchMode):
            raise SettingsError(f"mode {mode!r} is not a way to search. {near_names(mode, get_args(SearchMode))}")
        if k < 1:
            raise SettingsError(f"k must be at least 1, not {k}")
        opened = self._open_table()
        if mode != "vector" and not opened.is_indexed:
            raise MemoryStoreError(f"{self.uri}: the words of table {self.table!r} are not indexed; {_BUILD_REMEDY}")
        vector = self._embed_query(query) if mode != "full_text" else None
        found = _ask(opened.table, query, vector, mode, max(2 * k, _MIN_CANDIDATES))
        return sorted(found, key=lambda hit: (-hit.score, hit.chunk_id))[:k]

    def _embed_query(self, query: str) -> np.ndarray:
        embedder = self._require_embedder()
        self._check_embedding((embedder.name, embedder.dimension))
        return embedder.embed([query])[0]

    def chunks(self) -> list[Chunk]:
        """Every chunk, in the order of stem and number."""
        table = self._open_table().table
        return sorted(chunks_of(table.search().select(list(CHUNK_COLUMNS)).to_arrow()), key=_place)

    def __len__(self) -> int:
        return self._open_table().table.count_rows() if self.is_built else 0

    # -- the table ---------------------------------------------------------------------------------------------

    @property
    def is_built(self) -> bool:
        """True where the table is there."""
        if self._opened is not None:
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

    def _open_table(self) -> _OpenedTable:
        """The table as it is when first asked for: other processes' later writes are not seen."""
        opened = self._opened
        if opened is not None:
            return opened
        with self._lock:
            if self._opened is None:
                if not self.is_built:
                    raise MemoryStoreError(f"{self.uri}: there is no memory (table {self.table!r}); {_BUILD_REMEDY}")
                table, where = self._connect().open_table(self.table), f"{self.uri} (table {self.table!r})"
                require_columns(table.schema.names, where)
                embedded = table.search().select(["embedding_model", "embedding_dimension"]).to_arrow()
                self._opened = _OpenedTable(table, embedding_of(embedded, where), _is_indexed(table))
            return self._opened

    def _require_embedder(self) -> Embedder:
        with self._lock:
            if self._embedder is None:
                self._embedder = load_embedder()
            return self._embedder

    def _check_embedding(self, given: tuple[str, int] | None) -> None:
        stored = self._open_table().embedding if self.is_built else None
        if stored and given and stored != given:
            raise MemoryStoreError(
                f"{self.uri}: the memory was built with {stored[0]} ({stored[1]} dimensions), not with {given[0]} "
                f"({given[1]} dimensions); give the same embedding model, or build in another folder"
            )


def _reopened(uri: str, table: str, embedder: Embedder | None, was_built: bool) -> MemoryStore:
    """Raises MemoryStoreError where this process does not see what the other one did: every call would fail in silence."""
    store = MemoryStore(uri, table, embedder)
    if was_built and not store.is_built:
        raise MemoryStoreError(
            f"{uri}: there is no memory (table {table!r}) on {platform.node()}; lay it where every machine sees it (memory.path)"
        )
    return store


@dataclass(frozen=True, slots=True)
class _OpenedTable:
    """A version of the table, with what does not change while it is open."""

    table: Any
    embedding: tuple[str, int] | None
    is_indexed: bool
    """True where the words of every row are indexed; a build that was killed may have left that undone."""


def _is_indexed(table: Any) -> bool:
    return any(
        index.columns == ["transcript"]
        and index.num_unindexed_rows == 0
        and _WORD_INDEX.items() <= (index.index_details or {}).items()
        for index in table.list_indices()
    )


def _ask(table: Any, query: str, vector: np.ndarray | None, mode: SearchMode, limit: int) -> list[Hit]:
    """What LanceDB finds. The score of a vector is its cosine; BM25 and the fused score stay as they are."""
    from lancedb.query import BooleanQuery, MatchQuery, Occur, PhraseQuery
    from lancedb.rerankers import RRFReranker

    kinds: tuple[Any, ...] = (MatchQuery, PhraseQuery)  # a type checker misreads the defaults of their settings
    words = BooleanQuery([(Occur.SHOULD, kind(query, "transcript")) for kind in kinds])
    if mode == "full_text":
        rows = table.search(words, query_type="fts").select([*CHUNK_COLUMNS, "_score"]).limit(limit).to_arrow()
        scores = rows["_score"].to_pylist()
    elif mode == "vector":
        search = table.search(vector, vector_column_name="vector").distance_type("cosine")
        rows = search.select([*CHUNK_COLUMNS, "_distance"]).limit(limit).to_arrow()
        scores = [1 - distance for distance in rows["_distance"].to_pylist()]
    else:
        search = table.search(query_type="hybrid", vector_column_name="vector").vector(vector).text(words)
        rows = search.distance_type("cosine").rerank(RRFReranker(K=60)).limit(limit).to_arrow()
        scores = rows["_relevance_score"].to_pylist()
    return [
        Hit(chunk.chunk_id, chunk.episode, chunk.speaker, chunk.transcript, chunk.time, score)
        for chunk, score in zip(chunks_of(rows), scores, strict=True)
    ]


def _vectors_for(
    chunks: Sequence[Chunk], rows: pa.Table, embedder: Embedder, progress: Progress | None
) -> tuple[np.ndarray, int]:
    """Vectors of the chunks, float32 [N, D], and how many texts were embedded for them; known ones keep theirs."""
    row_of = {text: row for row, text in enumerate(rows["transcript"].to_pylist())}
    new = sorted({chunk.transcript for chunk in chunks} - row_of.keys())
    vectors = np.concatenate([vectors_of(rows), embed_texts(new, embedder, progress)])
    row_of |= {text: len(rows) + position for position, text in enumerate(new)}
    return vectors[np.asarray([row_of[chunk.transcript] for chunk in chunks], dtype=np.int64)], len(new)


def _place(chunk: Chunk) -> tuple[str, int]:
    return chunk.stem, chunk.number


def _by_id(chunks: Iterable[Chunk]) -> dict[str, Chunk]:
    """Raises MemoryStoreError where two chunks carry one id and differ."""
    by_id: dict[str, Chunk] = {}
    for chunk in chunks:
        if by_id.setdefault(chunk.chunk_id, chunk) != chunk:
            raise MemoryStoreError(
                f"two chunks carry the id {chunk.chunk_id!r}; give the files of one name different names"
            )
    return by_id
