"""Part `paraphrases`: what a reader of search results finds, at equal displayed words, for hard paraphrases and quotes.

A hit counts only if the whole passage is in its displayed text. Chunks of different sizes are compared by the recall within 200,
600 and 2,000 displayed words, which several hits may cover together. Questions of `hard.jsonl` that are for tuning are left
out. The part reads `../shared/data/podcast/changelog_md` and is skipped if that is missing.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.options import Options
from benchmarks.retrieval import FOLDER, NUM_QUOTES, QUESTIONS, SEED
from benchmarks.retrieval.asked import Asked, Episodes, Place, draw_quotes, read_questions
from benchmarks.retrieval.figures import FIGURES, NUM_RANKS, drawn_means, interval
from benchmarks.retrieval.hard import Hardness, is_for_tuning
from benchmarks.table import Row
from midthought.memory.build import chunk_all
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import Embedder
from midthought.memory.search import SearchMode
from midthought.memory.splitting import Chunking
from midthought.memory.store import MemoryStore
from midthought.memory.transcripts import Transcript, read_transcripts

PART = "paraphrases"
HARD = Path(__file__).with_name("hard.jsonl")
WORD_BUDGETS = (200, 600, 2_000)
GOALS = {"recall@1": 0.30, "recall@3": 0.45, "recall@10": 0.65}
"""Of the windows, on the hard paraphrases of the frozen set."""

Split = Callable[[Sequence[Transcript]], list[Chunk]]


@dataclass(frozen=True, slots=True)
class Step:
    """One way of splitting and searching that is compared."""

    name: str
    split: Split
    mode: SearchMode = "hybrid"
    has_goals: bool = False


def _split_by(chunking: Chunking, *, has_context: bool = True) -> Split:
    def split(transcripts: Sequence[Transcript]) -> list[Chunk]:
        chunks = chunk_all(transcripts, chunking)
        return chunks if has_context else [replace(each, embedded=each.embedded.partition("\n")[2]) for each in chunks]

    return split


STEPS = (
    Step("turns of 18 words", _split_by(Chunking("turns"))),
    Step("windows without context", _split_by(Chunking("windows"), has_context=False)),
    Step("windows", _split_by(Chunking("windows")), has_goals=True),
    Step("windows, vectors only", _split_by(Chunking("windows")), mode="vector"),
)


def measure(options: Options) -> Iterator[Row]:
    if not FOLDER.is_dir():
        print(f"{PART}: left out, ../shared/data/podcast/{FOLDER.name} is not there", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as cache:
        yield from measure_steps(FOLDER, (QUESTIONS, HARD), STEPS, 50 if options.quick else NUM_QUOTES, Path(cache))


def measure_steps(
    folder: Path,
    questions: Sequence[Path],
    steps: Sequence[Step],
    num_quotes: int,
    cache: Path,
    embedder: Embedder | None = None,
) -> Iterator[Row]:
    """Builds a memory for each step and asks all questions. Vectors are kept in `cache`."""
    transcripts = read_transcripts(folder).require_all()
    episodes = Episodes(transcripts)
    hard = {path.stem: hard_questions(path, episodes) for path in questions}
    asked = {"quotes": _quotes(transcripts, episodes, num_quotes)}
    asked |= {f"hard paraphrases ({name})": each for name, each in hard.items()}
    for step in steps:
        chunks = step.split(transcripts)
        places = episodes.places_of(chunks)
        with tempfile.TemporaryDirectory() as uri:
            store = MemoryStore.open(uri, embedder=embedder, embedding_cache=cache)
            store.build(chunks)
            for kind, each in asked.items():
                found = [search(store, places, one, step.mode) for one in each]
                setting = f"{step.name} ({len(chunks):,} chunks), {len(each)} {kind}"
                goals = GOALS if step.has_goals and kind.endswith(f"({questions[0].stem})") else {}
                yield from rows_of(setting, found, goals)
            if step.has_goals:
                yield from rows_of_second_queries(
                    step, store, places, [each for part in hard.values() for each in part], second_queries(questions)
                )


def hard_questions(path: Path, episodes: Episodes) -> list[Asked]:
    """Returns the hard questions of a file; of `hard.jsonl` only those that are not for tuning."""
    hardness = Hardness(episodes)
    every = [question for question in read_questions(path, episodes) if not hardness.shared(question)]
    return [question for question in every if path != HARD or not is_for_tuning(question)]


def _quotes(transcripts: Sequence[Transcript], episodes: Episodes, num_quotes: int) -> list[Asked]:
    chunks = chunk_all(transcripts)
    return draw_quotes(chunks, episodes.places_of(chunks), episodes, num_quotes, SEED)


def second_queries(paths: Sequence[Path]) -> dict[str, str]:
    """Returns, by question, what somebody might search for next; it was written without the rule for hard paraphrases."""
    records = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    return {record["question"]: record["second"] for record in records if "second" in record}


def rows_of_second_queries(
    step: Step, store: MemoryStore, places: Mapping[str, Place], asked: Sequence[Asked], second: Mapping[str, str]
) -> Iterator[Row]:
    """Compares six results of one query with three results each of two queries: equal displayed words."""
    both = [each for each in asked if each.text in second]
    counted = []
    for each in both:
        hits = store.search(each.text, 6, step.mode)
        more = store.search(second[each.text], 3, step.mode)
        shown = ([*hits], [*hits[:3], *more])
        counted.append([any(places[hit.chunk_id].covers(each.place) for hit in part) for part in shown])
    means = drawn_means(np.array(counted, dtype=float).reshape(-1, 2), lambda values: values, SEED) if both else None
    for column, figure in enumerate(("recall, 6 results of one query", "recall, 3 results each of two queries")):
        if means is not None:
            yield _row(f"{step.name}, {len(both)} hard paraphrases", figure, means[:, column : column + 1])


@dataclass(frozen=True, slots=True)
class Found:
    """The place of a question's passage among the results."""

    rank: int
    """Rank of the first hit that displays the whole passage; 0: not among the first 10."""
    num_words: float
    """Number of displayed words after which the passage has been displayed as a whole; infinite if never."""


def search(store: MemoryStore, places: Mapping[str, Place], asked: Asked, mode: SearchMode) -> Found:
    """Searches with as many results as the largest budget of words can display."""
    hits = store.search(asked.text, _num_results(places), mode)
    return found_in([places[hit.chunk_id] for hit in hits], asked.place)


def _num_results(places: Mapping[str, Place]) -> int:
    mean = sum(place.end - place.start for place in places.values()) / len(places)
    return max(NUM_RANKS, round(WORD_BUDGETS[-1] / mean) + 1)


def found_in(shown: Sequence[Place], passage: Place) -> Found:
    """Returns the place of the passage in results in this order, by what they display."""
    rank = next((number for number, place in enumerate(shown[:NUM_RANKS], 1) if place.covers(passage)), 0)
    missing, num_words = set(range(passage.start, passage.end)), 0
    for place in shown:
        num_words += place.end - place.start
        if place.stem == passage.stem:
            missing -= set(range(place.start, place.end))
        if not missing:
            return Found(rank, num_words)
    return Found(rank, float("inf"))


def rows_of(setting: str, found: Sequence[Found], goals: Mapping[str, float]) -> Iterator[Row]:
    """Recall and MRR by rank, and recall within each budget of displayed words."""
    ranks = np.array([[each.rank] for each in found])
    words = np.array([[each.num_words] for each in found])
    for name, worth in FIGURES.items():
        yield _row(setting, name, drawn_means(ranks, worth, SEED), goals.get(name))
    for budget in WORD_BUDGETS:
        means = drawn_means(words, lambda words, budget=budget: (words <= budget).astype(float), SEED)
        yield _row(setting, f"recall in {budget:,} displayed words", means)


def _row(setting: str, figure: str, means: np.ndarray, at_least: float | None = None) -> Row:
    value = interval(means[:, 0])
    return Row(part=PART, setting=setting, figure=f"{figure} (range: 95 % interval)", value=value, at_least=at_least)
