"""The tool with which a model searches the memory while it reasons."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from midthought.errors import SettingsError
from midthought.memory.chunks import Chunk
from midthought.memory.remote import RemoteMemory
from midthought.memory.search import Hit, SearchMode
from midthought.memory.store import MemoryStore
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter

TOOL_NAME = "memory_retrieval"
MAX_RESULTS = 10
MAX_QUERY_CHARS = 4_000
NOTHING_FOUND = "Nothing found."


class MemoryRetrievalTool(Tool):
    """`memory_retrieval(query, k)`: returns one line per chunk found; `metadata["chunk_ids"]` has their ids.

    The memory is local or a service (`RemoteMemory`); results are the same. `k` is the default number of results (1 to
    10). Repeated queries are answered from a cache.
    """

    pure = True
    max_concurrency = 16  # searches are CPU-bound: more at once would only slow each one down

    def __init__(
        self, store: MemoryStore | RemoteMemory, k: int = 3, mode: SearchMode = "hybrid", max_cached: int = 10_000
    ) -> None:
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
        self._max_cached = max_cached
        self._cache: OrderedDict[tuple[str, int], ToolOutput] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which starts with an empty cache."""
        return {**vars(self), "_cache": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def execute(self, *, query: str, k: int | None = None) -> ToolOutput:
        """Searches. Raises ValueError, which is shown to the model, if the query is empty or too long, or `k` is out of range."""
        k = self._k if k is None else k
        if not query.strip():
            raise ValueError("query is empty")
        if len(query) > MAX_QUERY_CHARS:
            raise ValueError(f"query is longer than {MAX_QUERY_CHARS:,} characters")
        if not 1 <= k <= MAX_RESULTS:
            raise ValueError(f"k must be from 1 to {MAX_RESULTS}")
        key = (" ".join(query.split()), k)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        hits = self._store.search(key[0], k, self._mode)
        output = ToolOutput(format_hits(hits) or NOTHING_FOUND, {"chunk_ids": [hit.chunk_id for hit in hits]})
        with self._lock:
            self._cache[key] = output
            if len(self._cache) > self._max_cached:
                self._cache.popitem(last=False)
        return output


def format_hits(hits: Iterable[Hit | Chunk]) -> str:
    """Formats results for the model, one numbered line each."""
    return "\n".join(f"[{number}] {format_chunk(hit)}" for number, hit in enumerate(hits, 1)) or NOTHING_FOUND


def format_chunk(chunk: Hit | Chunk) -> str:
    """`speaker: Ines Marlowe; episode: The Tide Clock; 00:01:37: So we have ...`."""
    return f"speaker: {chunk.speaker}; episode: {chunk.episode}; {chunk.time}: {chunk.transcript}"
