"""The steps from transcripts to a memory, together and one by one. All is read before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from midthought.memory.chunks import Chunk, chunk_transcript
from midthought.memory.embedding import Embedder, Progress, embed_texts, load_embedder
from midthought.memory.rows import rows_of
from midthought.memory.splitting import Chunking
from midthought.memory.store import BuildReport, MemoryStore
from midthought.memory.transcripts import Transcript, TranscriptFolder, read_transcripts

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


def build_memory(
    transcripts: str | Path | TranscriptFolder,
    uri: str | Path,
    chunking: Chunking | int = 18,
    embedder: Embedder | None = None,
    progress: Progress | None = None,
    table: str = "transcripts",
    replace: bool = False,
) -> BuildReport:
    """Make the memory at `uri` hold exactly the transcripts below a folder.

    New transcripts are added, changed ones updated. MemoryStoreError, with the counts, if chunks of other transcripts would be
    removed; with `replace` they are.

    Files that cannot be read are left out and logged as warnings; give `read_transcripts(folder)` to see them, and call its
    `require_all` where none may be missing. Raises TranscriptError where none can be read, MemoryStoreError where the memory
    was built with another embedding model; the memory then stays as it was, and a new one is not begun.
    """
    if not isinstance(transcripts, TranscriptFolder):
        transcripts = read_transcripts(transcripts)
        for _, reason in transcripts.failures:
            _log.warning("left out: %s", reason)
    return MemoryStore.open(uri, table, embedder).build(
        chunk_all(transcripts.transcripts, chunking), progress, replace=replace
    )


def chunk_all(transcripts: Iterable[Transcript], chunking: Chunking | int = 18) -> list[Chunk]:
    """The chunks of all transcripts, in their order. A number: by turns, at most so many words."""
    return [chunk for transcript in transcripts for chunk in chunk_transcript(transcript, chunking)]


def embed_chunks(chunks: list[Chunk], embedder: Embedder | None = None, progress: Progress | None = None) -> pa.Table:
    """The chunks as rows with vectors, to be kept by `rows.write_rows` and given to `MemoryStore.ingest`."""
    embedder = embedder or load_embedder()
    vectors = embed_texts([chunk.transcript for chunk in chunks], embedder, progress)
    return rows_of(chunks, vectors, embedder.name, getattr(embedder, "precision", None))
