"""Part `memory_growth`: adds episodes to a memory of a million chunks and deletes one, while another process searches it.

Vectors are drawn from a random mixture of Gaussians, texts from a random vocabulary: no embedding model is used.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory_scale.lines import DrawnEmbedder, draw_chunks
from benchmarks.memory_scale.runs import MODES, K, build, in_own_process, peak_bytes
from benchmarks.memory_scale.vectors import RANK, Mixture
from benchmarks.options import Options
from benchmarks.table import Row
from benchmarks.timing import Spread
from midthought.memory.chunks import Chunk
from midthought.memory.store import MemoryStore

PART = "memory_growth"
NUM_CHUNKS, NUM_QUICK = 1_000_000, 1_000
NUM_EPISODES = 6
CHUNKS_PER_EPISODE = 1_000
MAX_SECONDS = 10
FOLLOW_SECONDS = 1.0
IDLE_SECONDS = 20.0
DIMENSION, NUM_CLUSTERS, NUM_WORDS = 384, 192, 30_000


def measure(options: Options) -> Iterator[Row]:
    size = NUM_QUICK if options.quick else NUM_CHUNKS
    mixture, words = random_mixture(), random_words()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory"
        in_own_process(build, path, size, mixture, words)
        context = multiprocessing.get_context("spawn")
        stop, found = context.Event(), context.Queue()
        searching = context.Process(target=keep_searching, args=(path, mixture, words, stop, found))
        searching.start()
        time.sleep(1.0 if options.quick else 2 * IDLE_SECONDS)
        phases = in_own_process(grow, path, mixture, words)
        stop.set()
        searches = found.get()
        searching.join()
    yield from rows_of(size, phases, searches)


def random_mixture() -> Mixture:
    rng = np.random.default_rng(0)
    means = rng.standard_normal((NUM_CLUSTERS, DIMENSION), dtype=np.float32) / DIMENSION**0.5
    directions = 0.2 * rng.standard_normal((NUM_CLUSTERS, RANK, DIMENSION), dtype=np.float32) / DIMENSION**0.5
    rest = np.full(NUM_CLUSTERS, 0.6 / DIMENSION**0.5, dtype=np.float32)
    return Mixture(shares=np.full(NUM_CLUSTERS, 1 / NUM_CLUSTERS), means=means, directions=directions, rest=rest)


def random_words() -> list[str]:
    """A text of random words, the n-th most frequent of them with a frequency proportional to 1 / n."""
    rng = np.random.default_rng(0)
    letters = np.asarray(list("abcdefghijklmnoprstuvwy"))
    vocabulary = ["".join(rng.choice(letters, size=rng.integers(2, 9))) for _ in range(NUM_WORDS)]
    shares = 1 / np.arange(1, NUM_WORDS + 1)
    return [vocabulary[number] for number in rng.choice(NUM_WORDS, size=200_000, p=shares / shares.sum())]


def new_episode(words: list[str], number: int) -> list[Chunk]:
    stem = f"added-{number}"
    return [
        Chunk(
            f"{stem}_{place}",
            f"Added {number}",
            stem,
            chunk.speaker,
            f"{chunk.transcript} added{number}",
            chunk.time,
            place,
        )
        for place, chunk in enumerate(draw_chunks(words, CHUNKS_PER_EPISODE, seed=1_000 + number))
    ]


def grow(path: Path, mixture: Mixture, words: list[str]) -> dict[str, Any]:
    """Adds episodes one by one, then deletes one; returns the seconds, when each began and ended, and the peak of memory."""
    spans: list[tuple[str, float, float]] = []
    processor_seconds: list[float] = []
    for number in range(NUM_EPISODES):
        store = MemoryStore.open(path, embedder=DrawnEmbedder(mixture))  # as the command does
        chunks, began, processor = new_episode(words, number), time.time(), time.process_time()
        store.add(chunks, replace=False)
        spans.append(("add", began, time.time()))
        processor_seconds.append(time.process_time() - processor)
        if store.search(f"added{number}", 1, "full_text")[0].episode != f"Added {number}":
            raise RuntimeError(f"episode {number} is not found at once")
    added_peak = peak_bytes()
    began, processor = time.time(), time.process_time()
    MemoryStore.open(path).delete(["added-0"])
    spans.append(("delete", began, time.time()))
    processor_seconds.append(time.process_time() - processor)
    return {"spans": spans, "processor": processor_seconds, "add_peak": added_peak, "peak": peak_bytes()}


def keep_searching(path: Path, mixture: Mixture, words: list[str], stop: Any, found: Any) -> None:
    """Searches in all modes and follows the memory, until `stop`; sends (start, mode, seconds) of each search."""
    rng = np.random.default_rng(5)
    store = MemoryStore.open(path, embedder=DrawnEmbedder(mixture, mixture.draw(4, rng)))
    store.warm()
    searches: list[tuple[float, str, float]] = []
    queries, followed = mixture.draw(500, rng), time.time()
    while not stop.is_set():
        place = int(rng.integers(len(words) - 8))
        text, mode = " ".join(words[place : place + 6]), MODES[len(searches) % len(MODES)]
        began = time.time()
        store.search_batch([text], K, mode, vectors=[queries[len(searches) % len(queries)]])
        searches.append((began, mode, time.time() - began))
        if time.time() - followed > FOLLOW_SECONDS:
            store.follow()
            followed = time.time()
        time.sleep(0.02)
    found.put(searches)


def rows_of(size: int, phases: dict[str, Any], searches: list[tuple[float, str, float]]) -> Iterator[Row]:
    setting, spans = f"{size:,} chunks", phases["spans"]
    added = [end - began for what, began, end in spans if what == "add"]
    deleted = [end - began for what, began, end in spans if what == "delete"]
    at_most = MAX_SECONDS if size == NUM_CHUNKS else None
    yield Row(part=PART, setting=setting, figure="add an episode", value=Spread.of(added), at_most=at_most, unit="s")
    yield Row(part=PART, setting=setting, figure="delete an episode", value=Spread.of(deleted), unit="s")
    *of_adds, of_delete = phases["processor"]
    yield Row(part=PART, setting=setting, figure="add, of all threads", value=Spread.of(of_adds), unit="s")
    yield Row(part=PART, setting=setting, figure="delete, of all threads", value=Spread.of([of_delete]), unit="s")
    for name, peak in (("add, peak of memory", phases["add_peak"]), ("delete, peak of memory", phases["peak"])):
        yield Row(part=PART, setting=setting, figure=name, value=Spread.of([peak / 2**20]), unit="MiB")
    began, ended = spans[0][1], spans[-1][2]
    during = {what: [span for span in spans if span[0] == what] for what in ("add", "delete")}
    during["nothing"] = [("nothing", began - IDLE_SECONDS, began), ("nothing", ended, ended)]
    for what, of_phase in during.items():
        for mode in MODES:
            taken = [
                1000 * seconds
                for start, asked, seconds in searches
                if asked == mode and any(begin <= start <= end for _, begin, end in of_phase)
            ]
            if taken:
                value = Spread.of([float(np.quantile(taken, 0.95))])
                figure = f"{mode} search during {what}, p95 of {len(taken)}"
                yield Row(part=PART, setting=setting, figure=figure, value=value, unit="ms")
