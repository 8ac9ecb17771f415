"""What a build changes: compares the wanted chunks with the rows of the table. Writes nothing, and needs no vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from midthought.errors import MemoryStoreError
from midthought.memory.chunks import Chunk
from midthought.memory.duplicates import is_corrected
from midthought.memory.indices import has_word_index
from midthought.memory.rows import SENTENCES, are_windows, chunk_columns, chunks_of
from midthought.memory.sql_conditions import may_be_of
from midthought.memory.table import TableSnapshot
from midthought.memory.vector_cache import digest_of
from midthought.models.precision import PrecisionChoice

if TYPE_CHECKING:
    import pyarrow as pa

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

    def require_allowed(self, uri: str, table: Any, stems: Collection[str] | None) -> None:
        """Raises `MemoryStoreError` if another transcript of the table would be removed, or, with `stems`, replaced."""
        if stems is None:
            self.require_kept(uri)
        else:
            self.require_same_transcripts(uri, table)

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
        return are_windows(self.wanted)

    def are_few(self, num_rows: int) -> bool:
        """Whether updating a table of so many rows in place is cheaper than rewriting it."""
        num_changed = len(self.new) + len(self.removed)
        return num_changed <= _MAX_CHANGED_SHARE * num_rows and len(self.removed) <= _MAX_REMOVED_AT_ONCE

    def require_same_transcripts(self, uri: str, table: Any) -> None:
        """Raises `MemoryStoreError` if a transcript would be replaced that has other words (`is_corrected`); its speakers, times
        and splitting may differ."""
        changed = sorted({chunk_id.rpartition("_")[0] for chunk_id in (*self.removed, *self.replaced)})
        new, others = words_by_stem(chunk for chunk in self.wanted if chunk.stem in set(changed)), list[str]()
        for start in range(0, len(changed), _STEMS_PER_QUERY):
            old = words_by_stem(transcripts_in(table, changed[start : start + _STEMS_PER_QUERY]))
            others += [stem for stem, words in old.items() if not is_corrected(words, new.get(stem, ""))]
        if others:
            more = f"; {len(others) - 1} more names are also taken" if len(others) > 1 else ""
            raise MemoryStoreError(
                f"{uri}: another transcript in the memory is named {others[0]!r}; rename the file, or replace that transcript: "
                f"--replace, replace=True (less than half of the words are the same{more})"
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
    can_update, num_rows = opened.is_large and has_word_index(opened.table), opened.table.count_rows()
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


def all_chunks(table: Any, where: str | None = None) -> list[Chunk]:
    """Returns the chunks of a table that satisfy an SQL condition, unordered."""
    query = table.search().select(list(chunk_columns(table.schema.names)))
    return chunks_of((query.where(where) if where else query).to_arrow())


def stems_in(table: Any) -> frozenset[str]:
    """Returns the names of the table's transcripts: each has a chunk with the number 0."""
    return frozenset(chunk.stem for chunk in all_chunks(table, "chunk_id = 0"))


def transcripts_in(table: Any, stems: Collection[str]) -> list[Chunk]:
    """Returns the chunks of these transcripts in the table."""
    ordered, found = sorted(stems), list[Chunk]()
    for start in range(0, len(ordered), _STEMS_PER_QUERY):
        where = may_be_of(ordered[start : start + _STEMS_PER_QUERY])
        found += [chunk for chunk in all_chunks(table, where) if chunk.stem in stems]
    return found


def words_by_stem(chunks: Iterable[Chunk]) -> dict[str, str]:
    """Returns what is said in each transcript; words in which chunks overlap occur twice."""
    said: dict[str, list[str]] = {}
    for chunk in sorted(chunks, key=chunk_order):
        said.setdefault(chunk.stem, []).append(chunk.transcript)
    return {stem: " ".join(texts) for stem, texts in said.items()}


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
