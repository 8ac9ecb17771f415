"""The steps from transcripts to a memory, together and one by one. All transcripts are read before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from midthought.memory.chunks import Chunk, chunk_transcript
from midthought.memory.embedding import Embedder, Progress, embed_texts, load_embedder, packed
from midthought.memory.inspection import doubt_lines
from midthought.memory.rows import are_windows, rows_of
from midthought.memory.splitting import Chunking
from midthought.memory.store import MemoryStore
from midthought.memory.transcripts import Transcript, TranscriptFolder, read_transcripts
from midthought.memory.upsert import BuildReport

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
    """Makes the memory at `uri` hold exactly the transcripts below a folder.

    New transcripts are added, changed ones are updated. Raises MemoryStoreError, with the counts, if chunks of other
    transcripts would be removed; with `replace` they are removed.

    Files that cannot be read are skipped with a logged warning. To inspect them, pass `read_transcripts(folder)`; call
    its `require_all` if no file may be missing. Raises TranscriptError if no file can be read, and MemoryStoreError if
    the memory was built with another embedding model. In both cases the memory stays unchanged.
    """
    if not isinstance(transcripts, TranscriptFolder):
        transcripts = read_transcripts(transcripts)
        for _, reason in transcripts.failures:
            _log.warning("skipped: %s", reason)
        for line in doubt_lines(transcripts):
            _log.warning(line)
    store = MemoryStore.open(uri, table, embedder)
    return store.build(chunk_all(transcripts.transcripts, chunking), progress, replace=replace)


def chunk_all(transcripts: Iterable[Transcript], chunking: Chunking | int = 18) -> list[Chunk]:
    """Returns the chunks of all transcripts, in order. An integer `chunking` means: by turns, with at most this many words."""
    return [chunk for transcript in transcripts for chunk in chunk_transcript(transcript, chunking)]


def embed_chunks(chunks: list[Chunk], embedder: Embedder | None = None, progress: Progress | None = None) -> pa.Table:
    """Embeds the chunks and returns them as rows, to be written by `rows.write_rows` and passed to `MemoryStore.ingest`."""
    embedder = embedder or load_embedder()
    sentences = [chunk.embedded_sentences for chunk in chunks]
    vectors = embed_texts([*(chunk.embedded_text for chunk in chunks), *chain(*sentences)], embedder, progress)
    ends = np.cumsum([len(chunks), *map(len, sentences)])
    own = [packed(vectors[start:end]) for start, end in pairwise(ends)] if are_windows(chunks) else None
    return rows_of(chunks, vectors[: len(chunks)], embedder.name, sentences=own)
