"""What a build changes in a memory's table: compares the wanted chunks with its rows, and writes what differs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midthought.errors import MemoryStoreError
from midthought.memory.chunks import Chunk
from midthought.memory.indices import has_word_index, index_table, is_wholly_indexed
from midthought.memory.known_rows import EmbeddedVectors, GivenVectors, KnownRows, all_chunks, chunk_digest
from midthought.memory.rows import are_windows, rows_of
from midthought.memory.table import TableLocation, TableSnapshot, require_same_embedding

if TYPE_CHECKING:
    import pyarrow as pa

Vectors = EmbeddedVectors | GivenVectors

_ROWS_PER_BATCH = 16_384
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

    @property
    def changes(self) -> bool:
        """Whether the memory was changed."""
        return self.num_added > 0 or self.num_removed > 0


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

    def require_kept(self, uri: str) -> None:
        """Raises `MemoryStoreError` if chunks would be removed of transcripts that have no wanted chunk."""
        wanted = {chunk.stem for chunk in self.wanted}
        others = [stem for stem in map(_stem_of, self.removed) if stem not in wanted]
        if not others:
            return
        names = list(dict.fromkeys(others))
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise MemoryStoreError(
            f"{uri}: {len(others):,} chunks of {len(names):,} other transcripts ({shown}) would be removed; build from a "
            "folder that has these transcripts as well, or at another path (--path, memory.path), or remove them: "
            "--replace, memory.replace=true, replace=True"
        )

    def require_new(self, uri: str) -> None:
        """Raises `MemoryStoreError` if the table has one of the transcripts with other contents."""
        if changed := sorted({*map(_stem_of, self.removed), *map(_stem_of, self.replaced)}):
            more = f" and of {len(changed) - 1} more" if len(changed) > 1 else ""
            raise MemoryStoreError(
                f"{uri}: the memory has other contents of the transcript {changed[0]!r}{more}; if it was corrected, replace it: "
                "--replace, replace=True; if it is another transcript, rename its file"
            )

    def are_few(self, num_rows: int) -> bool:
        """Whether updating a table of so many rows in place is cheaper than rewriting it."""
        num_changed = len(self.new) + len(self.removed)
        return num_changed <= _MAX_CHANGED_SHARE * num_rows and len(self.removed) <= _MAX_REMOVED_AT_ONCE


def upsert(
    location: TableLocation,
    opened: TableSnapshot | None,
    wanted: Sequence[Chunk],
    stems: Collection[str] | None,
    vectors: Vectors,
    *,
    replace: bool,
) -> BuildReport:
    """Makes the table, or its transcripts with these stems, hold exactly the wanted chunks; writes nothing if it does so already.

    The caller is the only writer. Without `replace`, raises MemoryStoreError if another transcript would be removed, or, with
    `stems`, one would be replaced.
    """
    started = time.perf_counter()
    require_same_embedding(location.uri, opened.embedding if opened else None, vectors.embedding)
    known, changes, is_update = _compare(opened, wanted, stems)
    if opened and not replace:
        (changes.require_kept if stems is None else changes.require_new)(location.uri)
    num_embedded = 0
    if opened is None or changes.new or changes.removed:
        written = changes.new if is_update else changes.wanted
        has_windows = opened.has_windows if is_update and opened else are_windows(written)
        num_embedded = vectors.prepare(known, changes.new, written if has_windows else ())
        schema = _rows([], vectors, has_windows).schema
        if is_update:
            location.change(changes.removed, _batches(written, vectors, has_windows), schema)
        else:
            location.write(_batches(written, vectors, has_windows), schema)
    elif not is_wholly_indexed(opened.table):
        index_table(location.newest())  # an interrupted build left it incomplete
    num_kept = len(changes.wanted) - len(changes.new)
    seconds = time.perf_counter() - started
    return BuildReport(len(changes.new), num_kept, changes.num_known - num_kept, num_embedded, seconds)


def _compare(
    opened: TableSnapshot | None, wanted: Sequence[Chunk], stems: Collection[str] | None
) -> tuple[KnownRows, Changes, bool]:
    """Returns the existing rows, the changes, and whether to update the table in place.

    With `stems`, only those transcripts change: a large table's other rows are not read, a small one's are wanted, too. A table
    whose columns do not fit is rewritten.
    """
    if opened is None:
        return KnownRows(), Changes.between(KnownRows(), wanted), False
    can_update, num_rows = opened.is_large and has_word_index(opened.table), opened.table.count_rows()
    if stems is not None and can_update:
        known = KnownRows.read(opened.table, stems)
        changes = Changes.between(known, wanted)
        if changes.are_few(num_rows) and (opened.has_windows or not are_windows(wanted)):
            return known, changes, True
    if stems is not None:
        wanted = [*(chunk for chunk in all_chunks(opened.table) if chunk.stem not in stems), *wanted]
    known = KnownRows.read(opened.table)
    changes = Changes.between(known, wanted)
    return known, changes, can_update and are_windows(wanted) == opened.has_windows and changes.are_few(num_rows)


def _batches(chunks: Sequence[Chunk], vectors: Vectors, has_windows: bool) -> Iterator[pa.RecordBatch]:
    """Yields rows in the order of the chunks, computed lazily."""
    for start in range(0, len(chunks), _ROWS_PER_BATCH):
        yield from _rows(chunks[start : start + _ROWS_PER_BATCH], vectors, has_windows).to_batches()


def _rows(chunks: Sequence[Chunk], vectors: Vectors, has_windows: bool) -> pa.Table:
    sentences = vectors.sentences(chunks) if has_windows else None
    return rows_of(chunks, vectors.of(chunks), vectors.embedding[0], has_windows, sentences)


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


def _stem_of(chunk_id: str) -> str:
    return chunk_id.rpartition("_")[0]
