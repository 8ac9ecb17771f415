"""What the service's routes use: the memory with its counts and questions, and concurrent searches: queries that arrive while
others are embedded are embedded together. LanceDB is called in threads. Depends on an event loop, not on HTTP."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TypeVar

import numpy as np

from midthought.memory.embedding import Embedder, embed_queries
from midthought.memory.search import Filters, Hit, SearchMode
from midthought.memory.store import MemoryStore
from midthought.memory.table import TableLocation
from midthought.types import Task

T = TypeVar("T")
_QUESTION_COLUMNS = ("id", "text", "answer", "episode", "episode_file", "qa_index", "difficulty", "evidence")


class BusyError(Exception):
    """Too many queries are in progress."""


MAX_CONCURRENT_QUERIES = 512
"""Queries in progress; further ones are rejected with BusyError."""
MAX_BATCH_SIZE = 32
"""Queries that are embedded in one batch."""
NUM_THREADS = max(2, min(8, os.cpu_count() or 2))
"""Threads that call LanceDB."""


class Searcher:
    """Belongs to one event loop. `max_batch_size` 1: queries are embedded one by one."""

    def __init__(self, store: MemoryStore, embedder: Embedder, max_batch_size: int = MAX_BATCH_SIZE) -> None:
        self.store = store
        self._embedder = embedder
        self._max_batch_size = max_batch_size
        self.num_in_progress = 0
        self._waiting: list[tuple[str, asyncio.Future[np.ndarray]]] = []
        self._embedding: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="midthought-search")
        self._embedding_thread = ThreadPoolExecutor(1, thread_name_prefix="midthought-embed")

    async def search(self, query: str, k: int, mode: SearchMode, filters: Filters | None = None) -> list[Hit]:
        """Returns the hits of `MemoryStore.search`. Raises BusyError if too many queries are in progress."""
        if self.num_in_progress >= MAX_CONCURRENT_QUERIES:
            raise BusyError(f"{self.num_in_progress} queries are in progress; try again in a second")
        self.num_in_progress += 1
        try:
            vectors = [] if mode == "full_text" else [await self._vector(query)]
            within = asdict(filters or Filters())
            ask = functools.partial(self.store.search_batch, [query], k, mode, vectors=vectors, **within)
            return (await self.run(ask))[0]
        finally:
            self.num_in_progress -= 1

    def warm(self) -> None:
        """Calls `MemoryStore.warm` before the event loop runs, in the thread that will embed. A second thread that has
        computed would keep its own OpenMP threads, which slows both down."""
        self._embedding_thread.submit(self.store.warm).result()

    async def run(self, function: Callable[[], T]) -> T:
        """Runs `function()` in one of the threads: for other accesses to the table."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        """Stops the threads."""
        for threads in (self._embedding_thread, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _vector(self, text: str) -> np.ndarray:
        future: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        self._waiting.append((text, future))
        if self._embedding is None:
            self._embedding = asyncio.create_task(self._embed_waiting())
        return await future

    async def _embed_waiting(self) -> None:
        loop, size = asyncio.get_running_loop(), self._max_batch_size
        try:
            while self._waiting:
                taken, self._waiting = self._waiting[:size], self._waiting[size:]
                taken = [(text, future) for text, future in taken if not future.done()]  # skip cancelled ones
                texts = list(dict.fromkeys(text for text, _ in taken))
                embed = functools.partial(embed_queries, texts, self._embedder)
                try:
                    vectors = await loop.run_in_executor(self._embedding_thread, embed)
                except Exception as error:
                    for _, future in taken:
                        if not future.done():
                            future.set_exception(error)
                    continue
                vector_of = dict(zip(texts, vectors, strict=True))
                for text, future in taken:
                    if not future.done():
                        future.set_result(vector_of[text])
        finally:
            self._embedding = None


class ServiceState:
    """A memory, as it is now, and its questions. `store` must have been opened with this embedder."""

    def __init__(
        self,
        store: MemoryStore,
        embedder: Embedder,
        questions: Sequence[Task] = (),
        max_batch_size: int = MAX_BATCH_SIZE,
    ) -> None:
        """Counts the chunks, which stay in the table. Raises MemoryStoreError if the memory is not built."""
        self.store = store
        self.questions = questions
        self.searcher = Searcher(store, embedder, max_batch_size)
        opened = store._open_table()
        self.embedding = opened.embedding
        """Model and dimension; None if the memory is empty."""
        speaker = "speakers" if opened.has_windows else "speaker"
        counts: dict[str, Counter[str]] = {"episode": Counter(), speaker: Counter()}
        for batch in opened.table.search().select(list(counts)).to_batches(65_536):
            for name, counter in counts.items():
                column = batch.column(name)
                for value in (column.flatten() if name == "speakers" else column).value_counts():
                    counter[value["values"].as_py()] += value["counts"].as_py()
        self.episodes, self.speakers = (dict(sorted(counter.items())) for counter in counts.values())
        """Number of chunks by episode and by speaker, ordered by name."""
        self.num_chunks = sum(self.episodes.values())

    def sample(self, size: int, *, shuffle: bool, seed: int | None) -> tuple[Sequence[Task], int | None]:
        """Returns questions, and the seed of the sample."""
        if not shuffle:
            return self.questions[:size], None
        seed = secrets.randbelow(1_000_001) if seed is None else seed
        return random.Random(f"questions-{seed}").sample(self.questions, len(self.questions))[:size], seed


def stored_questions(uri: str) -> list[Task]:
    """Returns the questions in the memory's own table, written by `midthought memory questions --from-model`; none if there is
    no such table, or it is not ours."""
    location = TableLocation(uri, "questions")
    with location.errors():
        if not location.exists() or not set(_QUESTION_COLUMNS) <= set(location.newest().schema.names):
            return []
        found = location.newest().search().where("type = 'qa_question'").select(list(_QUESTION_COLUMNS))
        rows = found.to_arrow().to_pylist()
    return [
        Task(
            task_id=row["id"],
            prompt=row["text"],
            answer=row["answer"],
            labels={"episode": row["episode"], "difficulty": row["difficulty"]},
            evidence=tuple(row["evidence"] or ()),
        )
        for row in sorted(rows, key=lambda row: (row["episode_file"], row["qa_index"]))
    ]
