"""Part `service`: the memory's service over loopback, against calling LanceDB and the embedder directly, in the same run.

The service and the clients run in separate processes, so that the clients take no time from the service. The load is
closed-loop: each client sends a request, waits for the answer, and sends the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import Options
from benchmarks.table import Row
from benchmarks.timing import Spread
from midthought.memory.build import build_memory
from midthought.memory.embedding import embed_queries, load_embedder
from midthought.memory.remote import RemoteMemory
from midthought.memory.search import SearchMode
from midthought.memory.store import MemoryStore
from midthought.recipes.podcast.settings import sample_transcripts

PART = "service"
MAX_OVERHEAD = 1.3
MIN_GAIN = 2.0
MODES: tuple[SearchMode, ...] = ("vector", "hybrid", "full_text")
NUM_CLIENTS = 32
NUM_QUERIES = 150
"""Of one turn at concurrency 1; the crowd asks four times as many."""
NUM_FOUND = 20
"""Rows that the store asks for, to fuse and to order them."""
MAX_GROWTH_MIB = 64.0
MAX_GROWTH_IN_USE_MIB = 8.0
"""Of what the service holds. What the C library keeps for it beside that, in a heap for each thread, goes up and down."""


def measure(options: Options) -> Iterator[Row]:
    """Everything but the long load, which `python -m benchmarks.service --minutes 10` runs."""
    num_queries = 20 if options.quick else NUM_QUERIES
    with tempfile.TemporaryDirectory() as folder:
        memory = Path(folder) / "memory"
        build_memory(sample_transcripts(), memory)
        yield from against_direct(memory, num_queries, options.num_rounds)
        yield from batching(memory, 4 * num_queries, options.num_rounds)


def against_direct(memory: Path, num_queries: int, num_rounds: int) -> Iterator[Row]:
    """One client alone: what HTTP costs. LanceDB and the embedder, our store, and the service take turns in every round."""
    store = MemoryStore.open(memory, embedder=load_embedder())
    queries = some_queries(store, num_queries)
    with served(memory) as service:
        places = {"LanceDB": Direct(memory), "store": store, "service": RemoteMemory(service.url)}
        for mode in MODES:
            seconds: dict[str, list[np.ndarray]] = {name: [] for name in places}
            for number in range(num_rounds + 1):
                for name, place in places.items():
                    found = ask(place, queries if number else queries[:10], mode)
                    if number:
                        seconds[name].append(found)
            medians = {name: np.median(found, axis=1) for name, found in seconds.items()}
            for name, goal in (("LanceDB", MAX_OVERHEAD), ("store", None)):
                yield Row(
                    part=PART,
                    setting=f"{len(store):,} chunks, {mode}, 1 client",
                    figure=f"median time of a search against {name} called directly",
                    value=Spread.of((medians["service"] / medians[name]).tolist()),
                    at_most=goal,
                    seconds=_percentiles(**{name: np.concatenate(seconds[name]) for name in (name, "service")}),
                )


class Direct:
    """The same questions to LanceDB's own synchronous searches, after the embedder, as one writes it without a store."""

    def __init__(self, memory: Path) -> None:
        import lancedb

        self._table: Any = lancedb.connect(memory).open_table("transcripts")
        self._embedder = load_embedder()

    def search(self, query: str, k: int, mode: SearchMode) -> list[dict[str, Any]]:
        """Rows by words, by meaning, or both, which are not fused."""
        columns, found = ["id", "episode", "speaker", "transcript", "time"], []
        if mode != "full_text":
            vector = embed_queries([query], self._embedder)[0]
            search = self._table.search(vector, vector_column_name="vector").distance_type("cosine")
            found += search.select([*columns, "_distance"]).limit(NUM_FOUND).to_list()
        if mode != "vector":
            search = self._table.search(words_and_phrase(query), query_type="fts")
            found += search.select([*columns, "_score"]).limit(NUM_FOUND).to_list()
        return found


def words_and_phrase(query: str) -> Any:
    """What the store asks for by words."""
    from lancedb.query import BooleanQuery, MatchQuery, Occur, PhraseQuery

    kinds: tuple[Any, ...] = (MatchQuery, PhraseQuery)
    return BooleanQuery([(Occur.SHOULD, kind(query, "transcript")) for kind in kinds])


def batching(memory: Path, num_queries: int, num_rounds: int) -> Iterator[Row]:
    """A crowd of clients: the service that takes queries together against the same that does not."""
    queries = some_queries(MemoryStore.open(memory), num_queries)
    with served(memory) as together, served(memory, "--no-batching") as alone:
        for mode in MODES[:2]:
            for service in (together, alone):
                run_crowd(service.url, queries[: 2 * NUM_CLIENTS], mode)
            gains: list[float] = []
            waits: dict[str, list[float]] = {"together": [], "alone": []}
            rates: dict[str, list[float]] = {"together": [], "alone": []}
            for _ in range(num_rounds):
                for name, service in (("together", together), ("alone", alone)):
                    rate, seconds = crowd(service.url, queries, mode)
                    rates[name].append(rate)
                    waits[name] += seconds
                gains.append(rates["together"][-1] / rates["alone"][-1])
            yield Row(
                part=PART,
                setting=f"{mode}, {NUM_CLIENTS} clients",
                figure="searches/s with queries taken together, against one by one",
                value=Spread.of(gains),
                at_least=MIN_GAIN if mode == "vector" else None,
                seconds=_percentiles(**{name: np.asarray(seconds) for name, seconds in waits.items()}),
            )
            for name, found in rates.items():
                yield Row(
                    part=PART,
                    setting=f"{mode}, {NUM_CLIENTS} clients",
                    figure=f"queries taken {name}: searches/s",
                    value=Spread.of(found),
                    unit="/s",
                )


class Service:
    """A process that serves, and where."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    @property
    def rss_mib(self) -> float:
        """Resident memory, from Linux."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text("utf-8").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))

    def in_use_mib(self, num_samples: int = 21) -> float:
        """Memory that was asked for and not given back, the median of two seconds."""
        assert self.process.stdout is not None
        found = []
        for _ in range(num_samples):
            time.sleep(2.0 / num_samples)
            self.process.send_signal(signal.SIGUSR1)
            found.append(float(self.process.stdout.readline()))
        return float(np.median(found))


@contextlib.contextmanager
def served(memory: Path, *words: str) -> Iterator[Service]:
    """A service on a free loopback port, ended by SIGTERM. Raises RuntimeError if its exit code is not 0."""
    command = [sys.executable, "-m", "benchmarks.service", "--serve", str(memory), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Service(process, process.stdout.readline().rpartition(" ")[2].strip())
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    if code:
        raise RuntimeError(f"the service ended with code {code}")


def some_queries(store: MemoryStore, num_queries: int) -> list[str]:
    """Five to nine words of chunks, no query twice, the same every time."""
    rng = random.Random(0)
    chunks = store.chunks()
    found: dict[str, None] = {}
    while len(found) < num_queries:
        words = rng.choice(chunks).transcript.split()
        found[" ".join(words[: rng.randint(5, 9)]) + f" {len(found)}"] = None
    return list(found)


def ask(place: Direct | MemoryStore | RemoteMemory, queries: list[str], mode: SearchMode) -> np.ndarray:
    """Seconds of each search, one after the other."""
    seconds = np.zeros(len(queries))
    for number, query in enumerate(queries):
        begun = time.perf_counter()
        place.search(query, 3, mode)
        seconds[number] = time.perf_counter() - begun
    return seconds


def crowd(url: str, queries: list[str], mode: SearchMode) -> tuple[float, list[float]]:
    """Searches per second and seconds of each, of NUM_CLIENTS clients in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.service", "--crowd", url, "--mode", mode]
    done = subprocess.run(command, input=json.dumps(queries), capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(done.stdout)
    return found["rate"], found["seconds"]


def run_crowd(url: str, queries: list[str], mode: SearchMode) -> dict[str, Any]:
    """What `crowd` starts. In this process: to warm a service up."""
    remote = RemoteMemory(url, timeout_seconds=60)

    def one(query: str) -> float:
        begun = time.perf_counter()
        remote.search(query, 3, mode)
        return time.perf_counter() - begun

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        begun = time.perf_counter()
        seconds = list(pool.map(one, queries))
        return {"rate": len(queries) / (time.perf_counter() - begun), "seconds": seconds}


def endure(minutes: float, num_clients: int = 8) -> Iterator[Row]:
    """Load of all kinds for so long; ends at the first failure. Memory from the first minute on, to the end."""
    with tempfile.TemporaryDirectory() as folder:
        memory = Path(folder) / "memory"
        build_memory(sample_transcripts(), memory)
        queries = some_queries(MemoryStore.open(memory), 2_000)
        with served(memory) as service:
            begun = time.monotonic()
            ends_at, early = begun + 60 * minutes, begun + min(60.0, 6 * minutes)
            remote = RemoteMemory(service.url, timeout_seconds=30, retries=0)

            def load(client: int) -> list[float]:
                rng, seconds = random.Random(client), []
                while time.monotonic() < ends_at:
                    query, mode = rng.choice(queries), rng.choice(MODES)
                    started = time.perf_counter()
                    remote.search(query, rng.randint(1, 20), mode)
                    seconds.append(time.perf_counter() - started)
                return seconds

            with ThreadPoolExecutor(num_clients) as pool:
                running = [pool.submit(load, client) for client in range(num_clients)]
                time.sleep(max(0.0, early - time.monotonic()))
                first, first_in_use = service.rss_mib, service.in_use_mib()
                time.sleep(max(0.0, ends_at - time.monotonic() - 4))
                last, last_in_use = service.rss_mib, service.in_use_mib()
                seconds = np.concatenate([each.result() for each in running])
    setting = f"{minutes:g} minutes, {num_clients} clients, all modes, {len(seconds):,} requests, none failed"
    times = _percentiles(request=seconds)
    yield Row(
        part=PART,
        setting=setting,
        figure="requests/s",
        value=Spread.of([len(seconds) / (60 * minutes)]),
        unit="/s",
        seconds=times,
    )
    for name, before, after, at_most in (
        ("resident memory", first, last, MAX_GROWTH_MIB),
        ("memory in use", first_in_use, last_in_use, MAX_GROWTH_IN_USE_MIB),
    ):
        figure = f"growth of {name}, from {before:.0f} MiB after {(early - begun) / 60:g} minutes"
        value = Spread.of([after - before])
        yield Row(part=PART, setting=setting, figure=figure, value=value, unit="MiB", at_most=at_most)


def _bytes_in_use() -> int:
    """By glibc's own count, in heaps and in pages of their own."""
    import ctypes

    class Counts(ctypes.Structure):
        _fields_ = (("of", ctypes.c_size_t * 10),)

    count = ctypes.CDLL("libc.so.6").mallinfo2
    count.restype = Counts
    counts = count().of
    return int(counts[7] + counts[4])  # uordblks, hblkhd


def _percentiles(**seconds: np.ndarray) -> Mapping[str, float]:
    """p50 and p99 in seconds."""
    return {
        f"{name} p{percent}": float(np.percentile(found, percent))
        for name, found in seconds.items()
        for percent in (50, 99)
    }


def _main() -> None:
    import argparse

    from midthought.memory.service.command import serve
    from midthought.memory.service.searcher import MAX_BATCH_SIZE

    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=endure.__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--no-batching", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--crowd", help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="vector", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.serve:
        signal.signal(signal.SIGUSR1, lambda *_: print(_bytes_in_use() / 2**20, flush=True))
        size = 1 if words.no_batching else MAX_BATCH_SIZE
        serve(words.serve, port=0, max_batch_size=size, tell=lambda text: print(text, flush=True))
    elif words.crowd:
        print(json.dumps(run_crowd(words.crowd, json.load(sys.stdin), words.mode)))
    else:
        for row in endure(words.minutes):
            print(row.to_markdown(), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _main()
