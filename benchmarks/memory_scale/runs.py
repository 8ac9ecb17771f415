"""Builds a memory of a given size and searches it, in separate processes, so that RAM is measured for each. Linux only."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from benchmarks.memory_scale.lines import DrawnEmbedder, draw_chunks, draw_windows
from benchmarks.memory_scale.vectors import Mixture
from midthought.memory.search import SearchMode
from midthought.memory.store import MemoryStore

MODES: tuple[SearchMode, ...] = ("vector", "full_text", "hybrid")
K = 10
NUM_WARM = 30
QUERY_SEED = 1_000_003

Unit = Literal["chunks", "windows"]
DRAW = {"chunks": draw_chunks, "windows": draw_windows}
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What a build took."""

    seconds: float
    processor_seconds: float
    """Of all threads; the same however busy the machine is with other things."""
    peak_bytes: int
    """Resident memory of the process at its most, chunks and all."""
    disk_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """What searching took. A search is `MemoryStore.search` with k=10; embedding the query is not in it."""

    seconds: dict[str, list[float]]
    """Of each query, by mode; `exact` compares every vector, by LanceDB; `filtered` is `vector` in one episode."""
    recall: float | None
    """Share of the ten nearest by exact search that `vector` finds among its ten; None for windows."""
    peak_bytes: int


def in_own_process(work: Callable[..., Result], *arguments: Any) -> Result:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def build(folder: Path, size: int, mixture: Mixture, words: Sequence[str], unit: Unit = "chunks") -> Built:
    chunks = DRAW[unit](words, size)
    began, began_processor = time.perf_counter(), time.process_time()
    MemoryStore.open(folder, embedder=DrawnEmbedder(mixture)).build(chunks)
    seconds, processor_seconds = time.perf_counter() - began, time.process_time() - began_processor
    disk_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Built(seconds=seconds, processor_seconds=processor_seconds, peak_bytes=peak_bytes(), disk_bytes=disk_bytes)


def search(folder: Path, mixture: Mixture, words: Sequence[str], num_queries: int, unit: Unit) -> Searched:
    rng = np.random.default_rng(QUERY_SEED)
    queries = mixture.draw(num_queries, rng)
    starts = rng.integers(len(words) - 8, size=num_queries)
    asked = [" ".join(words[start : start + 4 + number % 5]) for number, start in enumerate(starts)]
    seconds: dict[str, list[float]] = {}
    found: list[list[str]] = []
    with_warming = np.concatenate([queries[: 1 + NUM_WARM], queries])
    for mode in MODES:
        store = MemoryStore.open(folder, embedder=DrawnEmbedder(mixture, with_warming))
        store.warm()
        for text in asked[:NUM_WARM]:
            store.search(text, K, mode)
        seconds[mode] = []
        for text in asked:
            began = time.perf_counter()
            hits = store.search(text, K, mode)
            seconds[mode].append(time.perf_counter() - began)
            if mode == "vector":
                found.append([hit.chunk_id for hit in hits])
    store = MemoryStore.open(folder, embedder=DrawnEmbedder(mixture, queries))
    seconds["filtered"] = []
    for text in asked:
        began = time.perf_counter()
        store.search(text, K, "vector", episodes=["Episode 3"])
        seconds["filtered"].append(time.perf_counter() - began)
    peak = peak_bytes()
    recall = None
    if unit == "chunks":
        pairs = zip(found, nearest_ids(folder, queries), strict=True)
        recall = float(np.mean([len(set(ours) & set(best)) / len(best) for ours, best in pairs]))
    seconds["exact"] = []
    table = _table(folder)
    for query in queries[:20]:
        began = time.perf_counter()
        table.search(query).distance_type("cosine").bypass_vector_index().limit(K).select(["id"]).to_arrow()
        seconds["exact"].append(time.perf_counter() - began)
    return Searched(seconds=seconds, recall=recall, peak_bytes=peak)


def nearest_ids(folder: Path, queries: np.ndarray) -> list[list[str]]:
    """Ids of the ten rows nearest to each query by cosine, every row compared."""
    best = np.full((len(queries), K), -np.inf, dtype=np.float32)
    ids = np.full((len(queries), K), "", dtype=object)
    for names, vectors in _stored(folder):
        scores = np.concatenate([best, queries @ vectors.T], axis=1)
        named = np.concatenate([ids, np.broadcast_to(names, (len(queries), len(names)))], axis=1)
        top = np.argpartition(-scores, K - 1, axis=1)[:, :K]
        best, ids = np.take_along_axis(scores, top, 1), np.take_along_axis(named, top, 1)
    return [[name for name in row if name] for row in ids.tolist()]


def _stored(folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for batch in _table(folder).search().select(["id", "vector"]).to_batches(batch_size=8_192):
        vectors = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
        yield np.asarray(batch.column("id").to_pylist(), dtype=object), vectors.reshape(batch.num_rows, -1)


def _table(folder: Path) -> Any:
    import lancedb

    return lancedb.connect(folder).open_table("transcripts")


def peak_bytes() -> int:
    """The most resident memory that this process has held."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
