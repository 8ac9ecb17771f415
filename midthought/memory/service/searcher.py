"""Searches for many at once: queries that come together are embedded, and compared with all vectors, together.

LanceDB is asked in threads. Knows the store and an event loop, and no HTTP.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from midthought.memory.embedding import Embedder, embed_queries
from midthought.memory.search import Hit, SearchMode
from midthought.memory.service.dynamic_batcher import DynamicBatcher
from midthought.memory.store import MemoryStore

T = TypeVar("T")


class BusyError(Exception):
    """More is under way than the service takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchLimits:
    """How much goes on at once."""

    max_concurrent_queries: int = 512
    """Queries under way; what comes beyond is told to come again."""
    max_batch_size: int = 32
    """Queries that are embedded in one go, or compared with all vectors; 1: every one by itself."""
    max_wait_seconds: float = 0.003
    """How long a query waits for others, where others are under way."""
    num_threads: int = max(2, min(8, os.cpu_count() or 2))
    """That ask LanceDB."""


class PrecomputedQueryEmbedder:
    """An embedder for the store that answers with what was embedded beforehand, for the thread that asks.

    So the store's own `search_batch` is what searches, and the embedding model is asked by the collector alone.
    """

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.name = embedder.name
        self.dimension = embedder.dimension
        self._here = threading.local()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32 [N, D], of what is to be stored."""
        return self.embedder.embed(texts)

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32 [N, D]: those at hand, else the model's."""
        at_hand = getattr(self._here, "vectors", None)
        return embed_queries(queries, self.embedder) if at_hand is None else at_hand

    def with_vectors(self, vectors: np.ndarray, ask: Callable[[], T]) -> T:
        """`ask()`, which finds these vectors, [N, D], of all that it asks for at hand."""
        self._here.vectors = vectors
        try:
            return ask()
        finally:
            self._here.vectors = None


@dataclass(frozen=True, slots=True)
class _VectorQuery:
    """A search by meaning whose query is embedded."""

    query: str
    vector: np.ndarray
    k: int
    episodes: tuple[str, ...]
    speakers: tuple[str, ...]

    @property
    def choice(self) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """Those of equal choice are searched together."""
        return self.k, self.episodes, self.speakers


class Searcher:
    """Belongs to one event loop. `observe(name, value)` is told `embedded_together`, `embed_seconds`, `search_seconds`."""

    def __init__(
        self,
        store: MemoryStore,
        vectors: PrecomputedQueryEmbedder,
        limits: SearchLimits | None = None,
        observe: Callable[[str, float], None] = lambda name, value: None,
    ) -> None:
        self.store = store
        self._vectors = vectors
        self._limits = limits or SearchLimits()
        self._observe = observe
        self.num_under_way = 0
        self._num_embedding = 0
        self._threads = ThreadPoolExecutor(self._limits.num_threads, thread_name_prefix="midthought-search")
        self._embedding_batcher: DynamicBatcher[str, np.ndarray] = DynamicBatcher(
            self._embed,
            max_batch_size=self._limits.max_batch_size,
            max_wait_seconds=self._limits.max_wait_seconds,
            num_others=lambda: self.num_under_way - self._num_embedding,
        )
        self._search_batcher: DynamicBatcher[_VectorQuery, list[Hit]] = DynamicBatcher(
            self._search_together, max_batch_size=self._limits.max_batch_size, max_wait_seconds=0.0
        )

    async def search(
        self,
        queries: Sequence[str],
        k: int,
        mode: SearchMode,
        episodes: Sequence[str] = (),
        speakers: Sequence[str] = (),
    ) -> list[list[Hit]]:
        """What `MemoryStore.search` finds for each query. Raises BusyError where too much is under way already."""
        if self.num_under_way and self.num_under_way + len(queries) > self._limits.max_concurrent_queries:
            raise BusyError(f"{self.num_under_way} queries are under way; come again in a second")
        self.num_under_way += len(queries)
        try:
            one = functools.partial(self._search, k=k, mode=mode, episodes=episodes, speakers=speakers)
            if len(queries) == 1:
                return [await one(queries[0])]
            return await _all_or_none([one(query) for query in queries])
        finally:
            self.num_under_way -= len(queries)

    def warm(self) -> None:
        """Before the event loop runs: `MemoryStore.warm`, in the thread that will embed. Another one that had computed before
        would keep OpenMP threads of its own, which then wake up slowly, its own and those of the thread that embeds."""
        self._embedding_batcher.before_all(self.store.warm)

    async def run(self, function: Callable[[], T]) -> T:
        """`function()` in one of the threads: for what else is asked of the table."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        """End the threads."""
        self._embedding_batcher.close()
        self._search_batcher.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _search(self, query: str, **choice: Any) -> list[Hit]:
        if choice["mode"] != "full_text" and self.num_under_way == 1:  # one thread after another would only cost time
            self._observe("embedded_together", 1)
            return await self._embedding_batcher.alone(functools.partial(self._ask, query, None, **choice))
        vector = None
        if choice["mode"] != "full_text":
            self._num_embedding += 1
            try:
                vector = await self._embedding_batcher.submit(query)
            finally:
                self._num_embedding -= 1
        begun = time.perf_counter()
        if vector is not None and choice["mode"] == "vector" and self._goes_together():
            names = (tuple(choice["episodes"]), tuple(choice["speakers"]))
            hits = await self._search_batcher.submit(_VectorQuery(query, vector, choice["k"], *names))
        else:
            hits = await self.run(functools.partial(self._ask, query, vector, **choice))
        self._observe("search_seconds", time.perf_counter() - begun)
        return hits

    def _goes_together(self) -> bool:
        return self._limits.max_batch_size > 1 and self.store.compares_all

    def _ask(self, query: str, vector: np.ndarray | None, **choice: Any) -> list[Hit]:
        ask = functools.partial(self.store.search, query, **choice)
        return ask() if vector is None else self._vectors.with_vectors(vector[None], ask)

    def _search_together(self, batch: list[_VectorQuery]) -> list[list[Hit]]:
        found: dict[int, list[Hit]] = {}
        for choice in dict.fromkeys(one.choice for one in batch):
            numbers = [number for number, one in enumerate(batch) if one.choice == choice]
            queries = [batch[number].query for number in numbers]
            k, episodes, speakers = choice
            ask = functools.partial(self.store.search_batch, queries, k, "vector", episodes=episodes, speakers=speakers)
            vectors = np.stack([batch[number].vector for number in numbers])
            found |= dict(zip(numbers, self._vectors.with_vectors(vectors, ask), strict=True))
        return [found[number] for number in range(len(batch))]

    def _embed(self, queries: list[str]) -> Sequence[np.ndarray]:
        begun = time.perf_counter()
        unique = list(dict.fromkeys(queries))
        row_of = {query: row for row, query in enumerate(unique)}
        found = embed_queries(unique, self._vectors.embedder)
        self._observe("embedded_together", len(queries))
        self._observe("embed_seconds", time.perf_counter() - begun)
        return [found[row_of[query]] for query in queries]


async def _all_or_none(coroutines: Sequence[Any]) -> list[Any]:
    """All results in order; where one fails, the others end with it."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
