"""The steps from transcripts to a memory, together and one by one. All is read before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from midthought.memory.chunks import Chunk, chunk_transcript
from midthought.memory.embedding import Embedder, Progress, embed_texts, load_embedder
from midthought.memory.rows import rows_of
from midthought.memory.store import BuildReport, MemoryStore
from midthought.memory.transcripts import Transcript, read_transcripts

if TYPE_CHECKING:
    import pyarrow as pa


def build_memory(
    transcripts_dir: str | Path,
    uri: str | Path,
    max_words: int = 18,
    embedder: Embedder | None = None,
    progress: Progress | None = None,
    table: str = "transcripts",
) -> BuildReport:
    """Make the memory at `uri` hold exactly the transcripts below `transcripts_dir`.

    Raises TranscriptError where any of them cannot be read, MemoryStoreError where the memory was built with another
    embedding model; the memory then stays as it was, and a new one is not begun.
    """
    chunks = chunk_all(read_transcripts(transcripts_dir).require_all(), max_words)
    return MemoryStore.open(uri, table, embedder).build(chunks, progress)


def chunk_all(transcripts: Iterable[Transcript], max_words: int = 18) -> list[Chunk]:
    """The chunks of all transcripts, in their order."""
    return [chunk for transcript in transcripts for chunk in chunk_transcript(transcript, max_words)]


def embed_chunks(chunks: list[Chunk], embedder: Embedder | None = None, progress: Progress | None = None) -> pa.Table:
    """The chunks as rows with vectors, to be kept by `rows.write_rows` and given to `MemoryStore.ingest`."""
    embedder = embedder or load_embedder()
    vectors = embed_texts([chunk.transcript for chunk in chunks], embedder, progress)
    return rows_of(chunks, vectors, embedder.name)
