"""Part `memory_scale`: a memory of 10,000 to 1,000,000 chunks or windows: build and search time, recall against exact search
(of chunks: windows are ordered by their sentences, too), and RAM.

Vectors are drawn from a mixture that is fitted to MiniLM embeddings of real transcripts (`../shared/data/podcast`). If that
folder is missing, the sample episodes are used, which are fewer than the goal requires; the table says so.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.memory_scale.runs import Built, Searched, Unit, build, in_own_process, search
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
SIZES: dict[Unit, tuple[int, ...]] = {
    "chunks": (10_000, 30_000, 100_000, 300_000, 1_000_000),
    "windows": (100_000, 1_000_000),
}
QUICK_SIZES: dict[Unit, tuple[int, ...]] = {"chunks": (300,), "windows": (300,)}
NUM_QUERIES = 400
MIN_RECALL = 0.95
MAX_SEARCH_MS = {"vector": 20, "hybrid": 45}
MAX_MIB = 4_096


def measure(options: Options) -> Iterator[Row]:
    if not Path("/proc/self/status").exists():
        print(f"{PART}: left out, memory is read where Linux shows it", file=sys.stderr)
        return
    mixture, words = fitted(FOLDER if FOLDER.is_dir() and not options.quick else sample_transcripts())
    num_queries = 40 if options.quick else NUM_QUERIES
    for unit, sizes in (QUICK_SIZES if options.quick else SIZES).items():
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                yield from rows_of(Path(folder) / "memory", size, unit, mixture, words, num_queries)


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


def rows_of(folder: Path, size: int, unit: Unit, mixture: Mixture, words: list[str], num_queries: int) -> Iterator[Row]:
    setting, is_goal = f"{size:,} {unit}", size == max(SIZES[unit])
    yield from built_rows(setting, is_goal, in_own_process(build, folder, size, mixture, words, unit))
    yield from searched_rows(setting, is_goal, in_own_process(search, folder, mixture, words, num_queries, unit))


def built_rows(setting: str, is_goal: bool, built: Built) -> Iterator[Row]:
    yield _row(setting, "build, without embedding", built.seconds, unit="s")
    yield _row(setting, "build, of all threads", built.processor_seconds, unit="s")
    most = MAX_MIB if is_goal else None
    yield _row(setting, "build, peak of memory", built.peak_bytes / 2**20, most, unit="MiB")
    yield _row(setting, "on the disk", built.disk_bytes / 2**20, unit="MiB")


def searched_rows(setting: str, is_goal: bool, found: Searched) -> Iterator[Row]:
    if found.recall is not None:
        recall = Spread.of([found.recall])
        yield Row(part=PART, setting=setting, figure="recall@10 of vector", value=recall, at_least=MIN_RECALL)
    for name, seconds in found.seconds.items():
        milliseconds = 1000 * np.asarray(seconds)
        at_most = MAX_SEARCH_MS.get(name) if is_goal else None
        yield _row(setting, f"{name}, median search", float(np.median(milliseconds)), unit="ms")
        yield _row(setting, f"{name}, p95", float(np.quantile(milliseconds, 0.95)), at_most, unit="ms")
    yield _row(setting, "search, peak of memory", found.peak_bytes / 2**20, MAX_MIB if is_goal else None, unit="MiB")


def _row(setting: str, figure: str, value: float, at_most: float | None = None, unit: str = "") -> Row:
    return Row(part=PART, setting=setting, figure=figure, value=Spread.of([value]), at_most=at_most, unit=unit)
