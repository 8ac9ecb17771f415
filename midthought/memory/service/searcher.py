"""Concurrent searches: queries that arrive together are embedded together.

LanceDB is called in threads. Depends on the store and an event loop, not on HTTP.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from midthought.memory.embedding import Embedder, embed_queries
from midthought.memory.search import Filters, Hit, SearchMode, with_thought
from midthought.memory.service.dynamic_batcher import DynamicBatcher
from midthought.memory.store import MemoryStore

T = TypeVar("T")


class BusyError(Exception):
    """Too many queries are in progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchLimits:
    """Concurrency limits."""

    max_concurrent_queries: int = 512
    """Queries in progress; further ones are rejected with BusyError."""
    max_batch_size: int = 32
    """Queries that are embedded in one batch; 1: no batching."""
    max_wait_seconds: float = 0.003
    """Time that a query waits for others, if others are in progress."""
    num_threads: int = max(2, min(8, os.cpu_count() or 2))
    """Threads that call LanceDB."""


class Searcher:
    """Belongs to one event loop."""

    def __init__(
        self,
        store: MemoryStore,
        embedder: Embedder,
        limits: SearchLimits | None = None,
    ) -> None:
        self.store = store
        self._embedder = embedder
        self._limits = limits or SearchLimits()
        self.num_in_progress = 0
        self._num_embedding = 0
        self._threads = ThreadPoolExecutor(self._limits.num_threads, thread_name_prefix="midthought-search")
        self._embedding_batcher: DynamicBatcher[str, np.ndarray] = DynamicBatcher(
            self._embed,
            max_batch_size=self._limits.max_batch_size,
            max_wait_seconds=self._limits.max_wait_seconds,
            num_others=lambda: self.num_in_progress - self._num_embedding,
        )

    async def search(
        self,
        query: str,
        k: int,
        mode: SearchMode,
        filters: Filters | None = None,
        thought: str = "",
    ) -> list[Hit]:
        """Returns the hits of `MemoryStore.search`. Raises BusyError if too many queries are in progress."""
        if self.num_in_progress >= self._limits.max_concurrent_queries:
            raise BusyError(f"{self.num_in_progress} queries are in progress; try again in a second")
        self.num_in_progress += 1
        try:
            return await self._search(query, thought, k=k, mode=mode, filters=filters or Filters())
        finally:
            self.num_in_progress -= 1

    def warm(self) -> None:
        """Calls `MemoryStore.warm` before the event loop runs, in the thread that will embed. A second thread that has
        computed would keep its own OpenMP threads, which slows both down."""
        self._embedding_batcher.before_all(self.store.warm)

    async def run(self, function: Callable[[], T]) -> T:
        """Runs `function()` in one of the threads: for other accesses to the table."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        """Stops the threads."""
        self._embedding_batcher.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _search(self, query: str, thought: str = "", **choice: Any) -> list[Hit]:
        if choice["mode"] != "full_text" and self.num_in_progress == 1:  # a second thread would only take longer
            return await self._embedding_batcher.alone(functools.partial(self._ask, query, thought, **choice))
        vector = None
        if choice["mode"] != "full_text":
            self._num_embedding += 1
            try:
                vector = await self._embedding_batcher.submit(with_thought(query, thought))
            finally:
                self._num_embedding -= 1
        return await self.run(functools.partial(self._ask, query, vector=vector, **choice))

    def _ask(
        self,
        query: str,
        thought: str = "",
        *,
        vector: np.ndarray | None = None,
        k: int,
        mode: SearchMode,
        filters: Filters,
    ) -> list[Hit]:
        vectors = None if vector is None else [vector]
        found = self.store.search_batch([query], k, mode, **asdict(filters), thoughts=[thought], vectors=vectors)
        return found[0]

    def _embed(self, queries: list[str]) -> Sequence[np.ndarray]:
        unique = list(dict.fromkeys(queries))
        row_of = {query: row for row, query in enumerate(unique)}
        found = embed_queries(unique, self._embedder)
        return [found[row_of[query]] for query in queries]
