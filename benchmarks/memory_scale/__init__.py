"""Part `memory_scale`: a memory of 10,000 to 1,000,000 chunks: build and search time, recall against exact search, and RAM.

Vectors are drawn from a mixture that is fitted to MiniLM embeddings of real transcripts (`../shared/data/podcast`). If that
folder is missing, the sample episodes are used, which are fewer than the goal requires; the table says so.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.memory_scale.runs import Built, Searched, build, in_own_process, search
from benchmarks.memory_scale.vectors import Mixture, fit, neighbours_beside
from benchmarks.options import Options
from benchmarks.table import Row
from benchmarks.timing import Spread
from midthought.memory.build import chunk_all
from midthought.memory.embedding import MiniLMEmbedder, embed_texts
from midthought.memory.transcripts import read_transcripts
from midthought.recipes.podcast.settings import sample_transcripts

PART = "memory_scale"
FOLDER = Path(__file__).parents[3] / "shared/data/podcast/changelog_md"
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
QUICK_SIZES = (300, 1_000)
NUM_QUERIES = 400
MIN_RECALL = 0.95
MAX_SEARCH_MS = 20
MAX_MIB = 4_096


def measure(options: Options) -> Iterator[Row]:
    if not Path("/proc/self/status").exists():
        print(f"{PART}: left out, memory is read where Linux shows it", file=sys.stderr)
        return
    mixture, words = fitted(FOLDER if FOLDER.is_dir() and not options.quick else sample_transcripts())
    for size in QUICK_SIZES if options.quick else SIZES:
        with tempfile.TemporaryDirectory() as folder:
            yield from rows_of(Path(folder) / "memory", size, mixture, words, 40 if options.quick else NUM_QUERIES)


def fitted(transcripts: Path) -> tuple[Mixture, list[str]]:
    """The mixture and the words of these episodes; prints how far neighbours are, real ones and drawn ones."""
    texts = sorted({chunk.transcript for chunk in chunk_all(read_transcripts(transcripts).require_all())})
    if transcripts != FOLDER:
        print(f"{PART}: fitted to {len(texts)} chunks of the sample episodes only", file=sys.stderr)
    real = embed_texts(texts, MiniLMEmbedder())
    mixture = fit(real)
    drawn = mixture.draw(len(real), np.random.default_rng(1))
    print(f"\n{len(real):,} real embeddings, {len(mixture.shares)} Gaussians widened by {mixture.spread:g}")
    print(f"\n{neighbours_beside(real, drawn)}\n", flush=True)
    return mixture, " ".join(texts).split()


def rows_of(folder: Path, size: int, mixture: Mixture, words: list[str], num_queries: int) -> Iterator[Row]:
    yield from built_rows(size, in_own_process(build, folder, size, mixture, words))
    yield from searched_rows(size, in_own_process(search, folder, mixture, words, num_queries))


def built_rows(size: int, built: Built) -> Iterator[Row]:
    most = MAX_MIB if size == max(SIZES) else None
    yield _row(size, "build, without embedding", built.seconds, unit="s")
    yield _row(size, "build, of all threads", built.processor_seconds, unit="s")
    yield _row(size, "build, peak of memory", built.peak_bytes / 2**20, most, unit="MiB")
    yield _row(size, "on the disk", built.disk_bytes / 2**20, unit="MiB")


def searched_rows(size: int, found: Searched) -> Iterator[Row]:
    is_goal = size == max(SIZES)
    recall = Spread.of([found.recall])
    yield Row(part=PART, setting=f"{size:,} chunks", figure="recall@10 of vector", value=recall, at_least=MIN_RECALL)
    for name, seconds in found.seconds.items():
        milliseconds = 1000 * np.asarray(seconds)
        at_most = MAX_SEARCH_MS if is_goal and name == "vector" else None
        yield _row(size, f"{name}, median search", float(np.median(milliseconds)), unit="ms")
        yield _row(size, f"{name}, p95", float(np.quantile(milliseconds, 0.95)), at_most, unit="ms")
    yield _row(size, "search, peak of memory", found.peak_bytes / 2**20, MAX_MIB if is_goal else None, unit="MiB")


def _row(size: int, figure: str, value: float, at_most: float | None = None, unit: str = "") -> Row:
    spread = Spread.of([value])
    return Row(part=PART, setting=f"{size:,} chunks", figure=figure, value=spread, at_most=at_most, unit=unit)
