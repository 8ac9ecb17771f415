"""Part `retrieval`: how often a memory of 30 real episodes finds the right chunk, for quotes and for questions in other words.

Quotes are also searched inside of questions, and all searches are repeated with a vector index, as large memories have. The
part reads `../shared/data/podcast/changelog_md`, which is not part of the repository, and is skipped if that is missing.
README.md in this folder describes the questions.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.options import Options
from benchmarks.retrieval.asked import Asked, Episodes, Place, draw_quotes, read_questions
from benchmarks.retrieval.figures import FIGURES, NUM_RANKS, drawn_means, interval, lead, to_table
from benchmarks.table import Row
from midthought.memory import indices
from midthought.memory.build import chunk_all
from midthought.memory.embedding import Embedder
from midthought.memory.search import SearchMode
from midthought.memory.store import MemoryStore
from midthought.memory.transcripts import read_transcripts

PART = "retrieval"
FOLDER = Path(__file__).parents[3] / "shared/data/podcast/changelog_md"
QUESTIONS = Path(__file__).with_name("paraphrased.jsonl")
MODES: tuple[SearchMode, ...] = ("vector", "full_text", "hybrid")
NUM_QUOTES = 500
SEED = 7
FRAMES = ('Which speaker said: "{}"?', 'How did it go on after somebody said "{}"?', 'What was meant by "{}"?')
BOTH = "mean of both"
MIN_LEADS = {"quotes": -0.02, "questions": -0.02, BOTH: 0.0}
"""What hybrid may be behind the better of the two others, at recall@3 and recall@10."""
GOAL_FIGURES = ("recall@3", "recall@10")

Means = Mapping[str, Mapping[str, np.ndarray]]
"""By kind and by figure, what `drawn_means` gives, the modes in the order of MODES."""


def measure(options: Options) -> Iterator[Row]:
    if not FOLDER.is_dir():
        print(f"{PART}: left out, ../shared/data/podcast/{FOLDER.name} is not there", file=sys.stderr)
        return
    yield from measure_folder(FOLDER, QUESTIONS, num_quotes=50 if options.quick else NUM_QUOTES)


def measure_folder(
    folder: Path, questions: Path, num_quotes: int, embedder: Embedder | None = None, seed: int = SEED
) -> Iterator[Row]:
    """Build a memory of the episodes with the default settings and ask it; the figures side by side are printed last."""
    transcripts = read_transcripts(folder).require_all()
    chunks = chunk_all(transcripts)
    episodes = Episodes(transcripts)
    places = episodes.places_of(chunks)
    quotes = draw_quotes(chunks, places, episodes, num_quotes, seed)
    asked = {
        "quotes": quotes,
        "questions": read_questions(questions, episodes),
        "quotes within questions": [
            replace(quote, text=FRAMES[number % len(FRAMES)].format(quote.text)) for number, quote in enumerate(quotes)
        ],
    }
    setting = f"{len(transcripts)} episodes, {len(chunks):,} chunks"
    tables: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder_of_both:
        for way in ("every vector compared", "vectors indexed"):
            uri = Path(folder_of_both) / way
            store = MemoryStore.open(uri, embedder=embedder, embedding_cache=Path(folder_of_both) / "embeddings")
            with vectors_indexed(way == "vectors indexed"):
                store.build(chunks)
            ranks = {kind: find(store, each, places) for kind, each in asked.items()}
            means = means_of(ranks)
            yield from rows_of(f"{setting}, {way}", means)
            yield from rows_of_lengths(f"{setting}, {way}", ranks["quotes"], quotes)
            tables[way] = to_table(means, MODES)
    for way, table in tables.items():
        print(f"\n{way}\n\n{table}\n")


@contextmanager
def vectors_indexed(is_wanted: bool) -> Iterator[None]:
    """Builds index the vectors, however few they are."""
    usual = indices.MIN_ROWS_FOR_VECTOR_INDEX
    if is_wanted:
        indices.MIN_ROWS_FOR_VECTOR_INDEX = 1
    try:
        yield
    finally:
        indices.MIN_ROWS_FOR_VECTOR_INDEX = usual


def find(store: MemoryStore, asked: Sequence[Asked], places: Mapping[str, Place]) -> np.ndarray:
    """The rank of the first relevant chunk for each query and mode, int [N, M]; 0 if none is among the first 10."""
    ranks = np.zeros((len(asked), len(MODES)), dtype=np.int64)
    for number, each in enumerate(asked):
        for column, mode in enumerate(MODES):
            hits = store.search(each.text, k=NUM_RANKS, mode=mode)
            relevant = (rank for rank, hit in enumerate(hits, 1) if each.is_answered_by(places[hit.chunk_id]))
            ranks[number, column] = next(relevant, 0)
    return ranks


def means_of(ranks: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Of each kind, drawn for itself, and of the two with goals, which count the same however many there are of each."""
    means = {
        kind: {name: drawn_means(each, worth, seed) for name, worth in FIGURES.items()}
        for seed, (kind, each) in enumerate(ranks.items())
    }
    both = [means[kind] for kind in MIN_LEADS if kind in means]
    return means | {BOTH: {name: np.mean([of_kind[name] for of_kind in both], axis=0) for name in FIGURES}}


def rows_of(setting: str, means: Means) -> Iterator[Row]:
    """Every figure of every kind and mode, and what hybrid is above the better of the two others."""
    for kind, of_kind in means.items():
        for name, of_modes in of_kind.items():
            for column, mode in enumerate(MODES):
                yield _row(f"{setting}, {kind}", f"{name}, {mode}", of_modes[:, column])
            goal = MIN_LEADS.get(kind) if name in GOAL_FIGURES else None
            leads = lead(of_modes, MODES.index("hybrid"))
            yield _row(f"{setting}, {kind}", f"{name}, hybrid less the better of the others", leads, goal)


def rows_of_lengths(setting: str, ranks: np.ndarray, quotes: Sequence[Asked]) -> Iterator[Row]:
    """recall@1 of the quotes of each length."""
    lengths = np.array([quote.num_words for quote in quotes])
    for length in sorted(set(lengths.tolist())):
        means = drawn_means(ranks[lengths == length], FIGURES["recall@1"], seed=length)
        asked = f"{setting}, {(lengths == length).sum()} quotes of {length} words"
        for column, mode in enumerate(MODES):
            yield _row(asked, f"recall@1, {mode}", means[:, column])


def _row(setting: str, figure: str, means: np.ndarray, at_least: float | None = None) -> Row:
    figure = f"{figure} (range: 95 % interval)"
    return Row(part=PART, setting=setting, figure=figure, value=interval(means), at_least=at_least)
