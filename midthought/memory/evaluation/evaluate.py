"""Searches a memory for every question and measures the rankings and the time. Prints nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from midthought.errors import DataError, SettingsError
from midthought.memory.embedding import Progress, embed_queries
from midthought.memory.evaluation.question_files import RetrievalQuestion
from midthought.memory.remote import RemoteMemory
from midthought.memory.search import Hit, SearchMode, spaced_words
from midthought.memory.store import MemoryStore

Result = TypeVar("Result")
MAX_HITS = 100  # the most that a service returns


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one run. Latencies are in seconds, one per question, each asked alone."""

    by_kind: dict[str, dict[str, float]]
    """Means over the questions of each kind, by the measure's name (`nDCG@10`); `all` comes last."""
    num_questions: dict[str, int]
    """Number of measured questions, by kind."""
    num_without_answer: int
    """Questions that were left out because nothing is relevant to them."""
    search_seconds: tuple[float, ...]
    """Without the query's embedding; with it if the memory is a service."""
    embed_seconds: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the figures with p50 and p95 of the latencies in milliseconds."""
        return {
            "kinds": {
                kind: {"num_questions": self.num_questions[kind]} | figures for kind, figures in self.by_kind.items()
            },
            "num_without_answer": self.num_without_answer,
            "search_ms": percentiles(self.search_seconds),
            "embed_ms": percentiles(self.embed_seconds),
        }

    def notes(self) -> list[str]:
        """Returns the latencies and the number of left out questions, a line each."""
        lines = [
            f"{name}: p50 {found['p50']:.1f} ms, p95 {found['p95']:.1f} ms"
            for name, seconds in (("search", self.search_seconds), ("embedding of the query", self.embed_seconds))
            if (found := percentiles(seconds))
        ]
        if self.num_without_answer:
            lines.append(f"left out, because they have no answer in the memory: {self.num_without_answer} questions")
        return lines


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Returns p50 and p95 in milliseconds (NumPy's linear interpolation); empty if there are no values."""
    return {f"p{at}": 1000 * float(np.percentile(seconds, at)) for at in (50, 95)} if seconds else {}


def require_searchable(memory: MemoryStore | RemoteMemory, questions: Sequence[RetrievalQuestion]) -> None:
    """Raises DataError if the memory lacks chunks that the questions name."""
    wanted = {chunk_id for each in questions if each.unit == "chunk" for chunk_id in each.relevant}
    missing = sorted(wanted - set(_get(memory, list(wanted))))
    if missing:
        raise DataError(
            f"the memory lacks {len(missing):,} of the {len(wanted):,} chunks that are named, such as {missing[0]!r}; build it "
            "from the same transcripts with the same chunking, or give passages instead of chunk ids"
        )


def _get(memory: MemoryStore | RemoteMemory, chunk_ids: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(chunk_ids), 1_000):
        yield from memory.get(chunk_ids[start : start + 1_000])


def evaluate(
    memory: MemoryStore | RemoteMemory,
    questions: Sequence[RetrievalQuestion],
    ks: Sequence[int] = (1, 3, 10),
    mode: SearchMode = "hybrid",
    progress: Progress | None = None,
) -> Evaluation:
    """Asks every question alone and returns nDCG, recall and `all` at each of `ks`, MRR at the largest, and the latencies.

    Raises SettingsError for invalid `ks` or no measurable question.
    """
    if not ks or min(ks) < 1 or max(ks) > MAX_HITS:
        raise SettingsError(f"k must be from 1 to {MAX_HITS}, not {', '.join(map(str, ks)) or 'empty'}")
    measured = [question for question in questions if question.relevant]
    if not measured:
        raise SettingsError(
            f"none of the {len(questions)} questions has a relevant chunk or passage; nothing to measure"
        )
    searcher = _Searcher(memory, mode)
    figures: dict[str, list[dict[str, float]]] = {}
    for number, question in enumerate(measured, 1):
        gains = gains_of(searcher.search(question, max(ks)), question)
        figures.setdefault(question.kind or "questions", []).append(
            _figures(gains, len(question.relevant), sorted(set(ks)))
        )
        if progress:
            progress(number, len(measured))
    every = [one for of_kind in figures.values() for one in of_kind]
    groups = dict(sorted(figures.items())) | ({"all": every} if len(figures) > 1 else {})
    means = {kind: {name: _mean(one[name] for one in group) for name in group[0]} for kind, group in groups.items()}
    num_questions = {kind: len(group) for kind, group in groups.items()}
    num_left_out = len(questions) - len(measured)
    return Evaluation(means, num_questions, num_left_out, tuple(searcher.seconds), tuple(searcher.embed_seconds))


def gains_of(hits: Sequence[Hit], question: RetrievalQuestion) -> list[int]:
    """Returns the ranking's gains (`measures`): for each hit, how many relevant items it covers first.

    A passage is covered by a hit that displays all its words contiguously, ignoring case, accents and punctuation.
    """
    left, gains = set(question.relevant), list[int]()
    for hit in hits:
        found = {hit.chunk_id} & left if question.unit == "chunk" else _displayed(left, hit)
        gains.append(len(found))
        left -= found
    return gains


def _displayed(passages: set[str], hit: Hit) -> set[str]:
    text = spaced_words(hit.transcript)
    return {passage for passage in passages if (words := spaced_words(passage)).strip() and words in text}


def _figures(gains: Sequence[int], num_relevant: int, ks: Sequence[int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, measure in (("nDCG", ndcg_at), ("recall", recall_at), ("all", all_at)):
        found |= {f"{name}@{k}": measure(gains, num_relevant, k) for k in ks}
    return found | {f"MRR@{ks[-1]}": reciprocal_rank(gains, ks[-1])}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


class _Searcher:
    """Searches with one query at a time and keeps the seconds of each."""

    def __init__(self, memory: MemoryStore | RemoteMemory, mode: SearchMode) -> None:
        self._memory = memory
        self._mode = mode
        self.seconds: list[float] = []
        self.embed_seconds: list[float] = []
        if isinstance(memory, MemoryStore) and mode != "full_text":
            memory.warm()
        memory.search("A query that loads the index.", 1, mode)

    def search(self, question: RetrievalQuestion, k: int) -> list[Hit]:
        memory, asked, episodes = self._memory, [question.text], question.episodes
        if not isinstance(memory, MemoryStore):
            return _timed(self.seconds, lambda: memory.search(question.text, k, self._mode, episodes=episodes))
        vectors: list[np.ndarray] | None = None
        if self._mode != "full_text":
            vectors = _timed(self.embed_seconds, lambda: list(embed_queries(asked, memory.embedder)))
        return _timed(
            self.seconds, lambda: memory.search_batch(asked, k, self._mode, episodes=episodes, vectors=vectors)[0]
        )


def _timed(seconds: list[float], call: Callable[[], Result]) -> Result:
    started = time.perf_counter()
    found = call()
    seconds.append(time.perf_counter() - started)
    return found


def summary_rows(found: Evaluation) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Returns the columns and one row per kind, for a table."""
    names = tuple(next(iter(found.by_kind.values())))
    rows: list[tuple[object, ...]] = [
        (kind, found.num_questions[kind], *(f"{figures[name]:.3f}" for name in names))
        for kind, figures in found.by_kind.items()
    ]
    return ("kind", "questions", *names), rows


def recall_at(gains: Sequence[int], num_relevant: int, k: int) -> float:
    """Returns the share of the relevant items that the first `k` hits cover: sum of gains 1 … k / number of relevant items.

    trec_eval's `recall_k`; Manning, Raghavan and Schütze, "Introduction to Information Retrieval" (2008), section 8.3.
    """
    return sum(gains[:k]) / num_relevant


def all_at(gains: Sequence[int], num_relevant: int, k: int) -> float:
    """Returns 1 if the first `k` hits cover every relevant item, else 0.

    `recall_all@k` of LongMemEval (Wu et al., 2024, arXiv 2410.10813; `src/retrieval/eval_utils.py`).
    """
    return float(sum(gains[:k]) >= num_relevant)


def reciprocal_rank(gains: Sequence[int], k: int) -> float:
    """Returns 1 / rank of the first hit that covers a relevant item; 0 if none of the first `k` does.

    Its mean over questions is MRR@k: Voorhees, "The TREC-8 Question Answering Track Report" (1999).
    """
    return next((1 / rank for rank, gain in enumerate(gains[:k], 1) if gain), 0.0)


def ndcg_at(gains: Sequence[int], num_relevant: int, k: int) -> float:
    """Returns DCG@k / DCG@k of a ranking with every relevant item first, where DCG@k = Σ rel(i) / log2(i + 1), i = 1 … k.

    rel(i) is 1 if hit i covers an item that no earlier hit covers, else 0. trec_eval's `ndcg_cut_k`; Järvelin and Kekäläinen,
    "Cumulated gain-based evaluation of IR techniques" (2002), with the discount of Burges et al. (2005).
    """
    reached = sum(_discount(rank) for rank, gain in enumerate(gains[:k], 1) if gain)
    return reached / sum(_discount(rank) for rank in range(1, min(num_relevant, k) + 1))


def _discount(rank: int) -> float:
    return 1 / math.log2(rank + 1)
