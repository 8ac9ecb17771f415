"""The memory: chunks with their vectors in a LanceDB table, with full-text, vector and hybrid search.

`upsert` computes the changes of a build, `table` writes them, `search` searches. No copy of the table is kept in memory.
"""

from __future__ import annotations

import dataclasses
import platform
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np

from midthought.errors import MemoryStoreError, near_names
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import Embedder, Progress, embed_queries, load_embedder
from midthought.memory.indices import warm_vector_index
from midthought.memory.known_rows import (
    EmbeddedVectors,
    GivenVectors,
    KnownRows,
    VectorCache,
    all_chunks,
    default_folder,
    transcripts_in,
)
from midthought.memory.rows import is_among, require_columns
from midthought.memory.search import FilterOptions, Filters, Hit, SearchMode, check_search, find
from midthought.memory.table import BUILD_REMEDY, TableLocation, TableSnapshot, in_one_sentence, require_same_embedding
from midthought.memory.upsert import BuildReport, Changes, Vectors, by_id, chunk_order, upsert

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")


class MemoryStore:
    """A memory in a LanceDB table, opened by `MemoryStore.open`. Searching is safe from many threads."""

    def __init__(self, location: TableLocation, embedder: Embedder | None, cache: Path | None) -> None:
        self._location = location
        self._embedder = embedder
        self._cache = cache
        self._opened: TableSnapshot | None = None
        self._lock = threading.RLock()
        self._opening = threading.Lock()  # a search does not wait for a build of this process

    @classmethod
    def open(
        cls,
        uri: str | Path,
        table: str = "transcripts",
        embedder: Embedder | None = None,
        *,
        embedding_cache: str | Path | None = None,
    ) -> MemoryStore:
        """Opens the memory at `uri`, built or not.

        `uri` is a folder or a URI that LanceDB accepts, such as `s3://BUCKET/FOLDER` (credentials: LanceDB's variables).
        Without an `embedder` MiniLM is loaded when first needed; full-text search needs none. With an `embedding_cache`
        (a folder, shared by any number of memories) vectors outlive the memory; without one they are cached beside the
        memory until the table has them, so that an interrupted build can resume. Raises MemoryStoreError if the memory was built
        with another embedding model.
        """
        store = cls(TableLocation(str(uri), table), embedder, Path(embedding_cache) if embedding_cache else None)
        if embedder is not None:
            store._check_embedding((embedder.name, embedder.dimension))
        return store

    @property
    def uri(self) -> str:
        """The memory's folder or URI."""
        return self._location.uri

    @property
    def table(self) -> str:
        """The table's name."""
        return self._location.name

    @property
    def embedder(self) -> Embedder:
        """The embedding model, loaded if necessary."""
        with self._lock:
            if self._embedder is None:
                self._embedder = load_embedder()
            return self._embedder

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the memory again at the same location."""
        cache = self._cache and self._cache.absolute()
        return _reopened, (self._location, self._embedder, cache, self.is_built)

    # -- building ----------------------------------------------------------------------------------------------

    @in_one_sentence
    def require_kept(self, chunks: Sequence[Chunk]) -> None:
        """Raises `MemoryStoreError`, with the counts, if `build` would remove chunks of transcripts that are not among these."""
        if self.is_built:
            Changes.between(KnownRows.read(self._open_table().table), chunks).require_kept(self.uri)

    def build(self, chunks: Sequence[Chunk], progress: Progress | None = None, *, replace: bool = True) -> BuildReport:
        """Makes the memory hold exactly these chunks. Only new texts are embedded. Without `replace`, raises as `require_kept`.

        The table is rewritten in one step, or updated in place if it is large and few rows change. Readers keep the version
        that they opened. After an interruption the next build resumes.
        """
        return self._embed_and_replace(chunks, progress, replace, None)

    def add(self, chunks: Sequence[Chunk], progress: Progress | None = None, *, replace: bool = True) -> BuildReport:
        """Adds whole transcripts, or replaces those with the same names (stems); all others stay, and a large memory's are not
        read. `num_kept` counts chunks of the given ones that the memory has already.

        Without `replace`, raises MemoryStoreError if the memory has a transcript of the same name with other contents.
        """
        report = self._embed_and_replace(chunks, progress, replace, {chunk.stem for chunk in chunks})
        return dataclasses.replace(report, num_kept=len(by_id(chunks)) - report.num_added)

    @in_one_sentence
    def delete(self, names: Collection[str]) -> int:
        """Deletes the transcripts of these names (file names without suffix); returns the number of deleted chunks.

        Older versions of the table keep the chunks until a build removes them, a day later. Questions about the
        transcripts stay. Raises MemoryStoreError, and deletes nothing, if the memory has no transcript of a name.
        """
        self._open_table()
        with self._lock, self._location.only_writer():
            table = self._location.newest()
            chunks = transcripts_in(table, names)
            if missing := sorted(set(names) - {chunk.stem for chunk in chunks}):
                near = near_names(missing[0], sorted({chunk.stem for chunk in all_chunks(table, "chunk_id = 0")}))
                raise MemoryStoreError(
                    f"{self.uri}: no transcript is named {missing[0]!r}, as its file without suffix. {near}"
                )
            self._location.change([chunk.chunk_id for chunk in chunks], iter(()), table.schema)
            self.refresh()
            return len(chunks)

    @in_one_sentence
    def _embed_and_replace(
        self, chunks: Sequence[Chunk], progress: Progress | None, replace: bool, stems: Collection[str] | None
    ) -> BuildReport:
        embedder, folder = self.embedder, default_folder(self.uri, self.table, self._location.is_local)
        self._location.check()
        with self._lock, self._location.only_writer():
            cache = VectorCache(self._cache or folder, embedder.name, embedder.dimension)
            report = self._replace(chunks, EmbeddedVectors(embedder, cache, progress), replace, stems)
            if self._cache is None:
                cache.clear()
            return report

    @in_one_sentence
    def ingest(self, rows: pa.Table, *, replace: bool = True) -> BuildReport:
        """Makes the memory hold exactly these rows (`rows.rows_of`), which were embedded elsewhere. `replace` as in `build`."""
        require_columns(rows.schema, "the table of embedded chunks")
        vectors = GivenVectors(rows, "the table of embedded chunks")
        with self._lock, self._location.only_writer():
            return self._replace(vectors.chunks, vectors, replace)

    def _replace(
        self, wanted: Sequence[Chunk], vectors: Vectors, replace: bool, stems: Collection[str] | None = None
    ) -> BuildReport:
        self.refresh()
        opened = self._location.open(even_incomplete=True) if self.is_built else None
        try:
            return upsert(self._location, opened, wanted, stems, vectors, replace=replace)
        finally:
            self.refresh()

    def refresh(self) -> None:
        """Makes later calls see what other processes wrote after the memory was opened."""
        self._opened = None

    # -- searching ---------------------------------------------------------------------------------------------

    def search(
        self, query: str, k: int = 3, mode: SearchMode = "hybrid", **filters: Unpack[FilterOptions]
    ) -> list[Hit]:
        """Returns the best `k` chunks, best first. The query is plain text in every mode, without query syntax.

        `full_text` ranks by words, higher if the query occurs as a phrase (best for quotes), `vector` by meaning,
        `hybrid` by both rankings (`search.fuse`). `episodes` and `speakers` restrict the search. The same memory returns the
        same hits; equal scores are ordered by id. If more than max(2 k, 20) hits have equal scores (vector search in a large
        memory: more than k), LanceDB decides which of them are returned. Raises MemoryStoreError if the memory is not built.
        """
        return self.search_batch([query], k, mode, **filters)[0]

    @in_one_sentence
    def search_batch(
        self,
        queries: Sequence[str],
        k: int = 3,
        mode: SearchMode = "hybrid",
        *,
        vectors: Sequence[np.ndarray] | None = None,
        **filters: Unpack[FilterOptions],
    ) -> list[list[Hit]]:
        """Returns the hits of `search` for each query. Queries are embedded together.

        `vectors` are the unit vectors of the queries, float32 [D] each, if the caller has embedded them.
        """
        check_search(k, mode)
        queries = [query.encode(errors="replace").decode() for query in queries]  # no lone surrogates
        within = Filters.of(**filters)
        if mode != "vector" and not self._open_table().is_indexed:
            raise MemoryStoreError(f"{self.uri}: the words of table {self.table!r} are not indexed; {BUILD_REMEDY}")
        if mode != "full_text" and vectors is None:
            embedder = self.embedder
            self._check_embedding((embedder.name, embedder.dimension))
            vectors = list(embed_queries(queries, embedder))
        nothing: list[np.ndarray | None] = [None] * len(queries)
        near: Sequence[np.ndarray | None] = vectors or nothing
        asked = list(zip(queries, near, strict=True))
        return self._read(lambda opened: [find(opened, query, vector, k, mode, within) for query, vector in asked])

    def warm(self) -> None:
        """Loads the embedding model and the vector index into memory, so that the first search is as fast as later ones.

        For a million MiniLM chunks that is 400 MB, which searches would load piece by piece. Raises MemoryStoreError if the
        memory is not built.
        """
        with self._location.errors():
            warm_vector_index(self._open_table().table)
        self.search("A query that loads the model.", 1)

    @in_one_sentence
    def chunks(self) -> list[Chunk]:
        """Returns all chunks, ordered by stem and number."""
        return self._read(lambda opened: sorted(all_chunks(opened.table), key=chunk_order))

    @in_one_sentence
    def get(self, chunk_ids: Sequence[str]) -> dict[str, Chunk]:
        """Returns the chunks with these ids that exist, by id."""
        where = is_among("id", chunk_ids)
        return self._read(lambda opened: by_id(all_chunks(opened.table, where))) if chunk_ids else {}

    @in_one_sentence
    def __len__(self) -> int:
        return self._open_table().table.count_rows() if self.is_built else 0

    # -- the table ---------------------------------------------------------------------------------------------

    @property
    @in_one_sentence
    def is_built(self) -> bool:
        """Whether the table exists."""
        return self._opened is not None or self._location.exists()

    @property
    def has_windows(self) -> bool:
        """Whether a chunk is a window of several turns. Raises MemoryStoreError if the memory is not built."""
        return self._open_table().has_windows

    @in_one_sentence
    def _open_table(self) -> TableSnapshot:
        """Returns the version that was opened by the first call: later writes are not seen."""
        opened = self._opened
        if opened is not None:
            return opened
        with self._opening:
            if self._opened is None:
                self._opened = self._location.open()
            return self._opened

    def _read(self, read: Callable[[TableSnapshot], Result]) -> Result:
        """Calls `read` with the open version; if that fails because the version was removed, with the newest one."""
        opened = self._open_table()
        try:
            return read(opened)
        except (ValueError, RuntimeError, OSError):
            if self._location.is_newest(opened):
                raise
            self.refresh()
            return read(self._open_table())

    def _check_embedding(self, given: tuple[str, int]) -> None:
        require_same_embedding(self.uri, self._open_table().embedding if self.is_built else None, given)


def _reopened(location: TableLocation, embedder: Embedder | None, cache: Path | None, was_built: bool) -> MemoryStore:
    """Raises MemoryStoreError if this process does not see the memory of the other one: every call would fail silently."""
    store = MemoryStore(location, embedder, cache)
    if was_built and not store.is_built:
        raise MemoryStoreError(
            f"{location.uri}: there is no memory (table {location.name!r}) on {platform.node()}; "
            "put it on storage that every machine can read (memory.path)"
        )
    return store
