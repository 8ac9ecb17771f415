"""The tool with which a model searches the memory while it reasons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from midthought.errors import NoReplyError, SettingsError
from midthought.memory.chunks import Chunk, with_speakers
from midthought.memory.remote import RemoteMemory
from midthought.memory.search import MAX_QUERY_CHARS, Hit, SearchMode
from midthought.memory.store import MemoryStore
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter

TOOL_NAME = "memory_retrieval"
MAX_RESULTS = 10
NOTHING_FOUND = "Nothing found."


class MemoryRetrievalTool(Tool):
    """`memory_retrieval(query, k)`: returns one line per chunk found; `metadata["chunk_ids"]` has their ids.

    The memory is local or a service (`RemoteMemory`); results are the same. `k` is the default number of results (1 to 10).
    """

    max_concurrency = 16  # searches are CPU-bound: more at once would only slow each one down

    def __init__(self, store: MemoryStore | RemoteMemory, k: int = 3, mode: SearchMode = "hybrid") -> None:
        if not 1 <= k <= MAX_RESULTS:
            raise SettingsError(f"k must be from 1 to {MAX_RESULTS}, not {k}")
        self.definition = ToolDefinition(
            TOOL_NAME,
            "Searches the transcripts of the podcast and returns what was said, by whom, in which episode and when.",
            [
                ToolParameter("query", "string", "The words to look for: a quote, a name or a subject."),
                ToolParameter("k", "integer", f"How many results, 1 to {MAX_RESULTS}.", required=False, default=k),
            ],
        )
        if isinstance(store, RemoteMemory):
            self.max_concurrency = store.max_concurrency
        self._store = store
        self._k = k
        self._mode: SearchMode = mode

    def execute(self, *, query: str, k: int | None = None) -> ToolOutput:
        """Searches. Raises ValueError, which is shown to the model, if the query is empty or too long, or `k` is out of range."""
        k = self._k if k is None else k
        if not query.strip():
            raise ValueError("query is empty")
        if len(query) > MAX_QUERY_CHARS:
            raise ValueError(f"query is longer than {MAX_QUERY_CHARS:,} characters")
        if not 1 <= k <= MAX_RESULTS:
            raise ValueError(f"k must be from 1 to {MAX_RESULTS}")
        with _in_words_for_the_model():
            hits = self._store.search(" ".join(query.split()), k, self._mode)
        return ToolOutput(format_hits(hits), {"chunk_ids": [hit.chunk_id for hit in hits]})


@contextlib.contextmanager
def _in_words_for_the_model() -> Iterator[None]:
    """Leaves out a service's address, which differs between machines, and the remedy, which is for the user."""
    try:
        yield
    except NoReplyError as error:
        words = str(error).partition(": ")[2].rpartition("; ")[0]
        raise NoReplyError(f"{words}; go on without it", is_passing=error.is_passing) from error


def format_hits(hits: Iterable[Hit | Chunk]) -> str:
    """Formats results for the model, one numbered line each."""
    return "\n".join(f"[{number}] {format_chunk(hit)}" for number, hit in enumerate(hits, 1)) or NOTHING_FOUND


def format_chunk(chunk: Hit | Chunk) -> str:
    """`speaker: Ines Marlowe; episode: The Tide Clock; 00:01:37: So we have ...`. In a window of several turns every turn
    begins with its speaker, and with its time if that is half a minute after the last one: `episode: The Tide Clock; 00:01:37:
    Ines Marlowe: So we have ... Odile (00:02:12): Yes.`"""
    speaker = "" if len(chunk.turns) > 1 else f"speaker: {chunk.speaker}; "
    return f"{speaker}episode: {chunk.episode}; {chunk.time}: {with_speakers(chunk)}"
