"""Full-text, vector and hybrid search in a LanceDB table, with filters. Depends on no embedding model and writes nothing."""

from __future__ import annotations

import asyncio
import heapq
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np
import regex

from midthought.errors import SettingsError, near_names
from midthought.memory.embedding import window_scores
from midthought.memory.rows import SENTENCES, has_any, is_among, places_of_json, sentences_of_rows
from midthought.memory.splitting import WordRun, is_repeated, word_runs
from midthought.memory.turns import UNSPACED_LETTER

if TYPE_CHECKING:
    from midthought.memory.table import TableSnapshot

SearchMode = Literal["hybrid", "vector", "full_text"]
Names = Sequence[str]
"""Names of episodes or speakers."""

MAX_QUERY_CHARS = 4_000
"""Longest query of the tool and of a service."""
NUM_PROBES = 16
"""Number of partitions that a vector search reads."""
_HIT_COLUMNS = ("id", "episode", "speaker", "transcript", "time")
_MIN_CANDIDATES = 20  # the same for every k up to 10, so that k does not change which rows come first
_NUM_WEIGHED = 5
_RANK_OFFSET = 20
_MIN_WEIGHT = 0.02
_NUM_BY_CHANCE = 3
"""So many contiguous words have no effect; each further one divides the weight of the vector search by 4."""
_BETWEEN_WORDS = re.compile(r"[\W_]+")
_ASCII_WORDS = bytes(ord(chr(code).lower()) if chr(code).isalnum() else ord(" ") for code in range(128)).ljust(256)
_COMMON_MARKS = "’‘“”–—…\u00a0"
"""A text with no other characters beyond ASCII needs no Unicode tables."""
_LETTER_ALONE = regex.compile(rf"{UNSPACED_LETTER}\p{{M}}*")
_ACCENTS = regex.compile(r"\P{Canonical_Combining_Class=0}+")


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a search found. `score` is BM25, cosine similarity (of a window: `window_scores`) or the score of `fuse`,
    depending on the mode."""

    chunk_id: str
    episode: str
    speaker: str
    transcript: str
    time: str
    score: float
    turns: tuple[tuple[int, str], ...] = ()
    """As in `Chunk`: the positions at which the speakers of a window begin."""
    times: tuple[tuple[int, str], ...] = ()
    """As in `Chunk`: the positions at which the times of a window begin."""

    def __post_init__(self) -> None:
        for name in ("turns", "times"):
            object.__setattr__(self, name, tuple((int(start), str(text)) for start, text in getattr(self, name)))


def check_search(k: int, mode: str) -> None:
    """Raises SettingsError for an unknown mode or an invalid `k`."""
    if mode not in get_args(SearchMode):
        raise SettingsError(f"mode {mode!r} is not a search mode. {near_names(mode, get_args(SearchMode))}")
    if k < 1:
        raise SettingsError(f"k must be at least 1, not {k}")


def find(
    opened: TableSnapshot, query: str, vector: np.ndarray | None, k: int, mode: SearchMode, filters: Filters
) -> list[Hit]:
    """Returns the best `k` hits for a query, best first. `vector` is the query's, float32 [D]; `full_text` needs none.

    A large table uses its vector index, and no phrase queries, which take LanceDB a second in a million rows; instead
    full-text hits are reweighted by the share of the query that occurs contiguously in each. So are the hits of a table with
    windows, whose many words hide a short quote within a question.
    """
    table, is_large, has_windows = opened.table, opened.is_large, opened.has_windows
    limit, where = max(2 * k, _MIN_CANDIDATES), filters.to_sql(has_windows)
    if has_windows:
        limit *= 2  # neighbouring windows repeat each other
    columns = [*_HIT_COLUMNS, *(["turns", "times"] if has_windows else [])]
    is_weighed = is_large or has_windows
    asked = []
    if mode != "vector":
        asked.append(_by_words(table, columns, query, _NUM_WEIGHED * limit if is_weighed else limit, where, is_large))
    if vector is not None and mode != "full_text":
        num_read = k if is_large and mode == "vector" and not has_windows else limit
        with_sentences = [*columns, *([SENTENCES] if has_windows else [])]
        asked.append(_by_meaning(table, with_sentences, vector, limit, num_read, where))
    rows = _answers_to(asked)
    by_words, by_meaning = list[Hit](), list[Hit]()
    if mode != "vector":
        scores = rows[0]["_score"].to_pylist()
        by_words = _weighed(query, rows[0], has_windows, limit) if is_weighed else _hits_of(rows[0], scores)
    if vector is not None and mode != "full_text":
        by_meaning = _by_sentences(rows[-1], vector)
    ranked = fuse(query, by_words, by_meaning) if mode == "hybrid" else [*by_words, *by_meaning]
    return without_repeats(ranked, k) if has_windows else ranked[:k]


def without_repeats(hits: Sequence[Hit], k: int) -> list[Hit]:
    """Returns the first `k` hits that do not repeat a better one, as ads and intros in several episodes do."""
    kept: list[Hit] = []
    seen: list[frozenset[WordRun]] = []
    for hit in hits:
        if len(kept) == k:
            break
        runs = word_runs(hit.transcript)
        if not is_repeated(runs, seen):
            kept.append(hit)
            seen.append(runs)
    return kept


def _answers_to(asked: Sequence[Any]) -> list[Any]:
    """Runs LanceDB queries concurrently. This takes one thread switch; LanceDB's synchronous searches take six, which
    takes as long as a vector lookup."""
    from lancedb.background_loop import LOOP

    async def answers() -> list[Any]:
        return list(await asyncio.gather(*(each.to_arrow() for each in asked)))

    rows: list[Any] = LOOP.run(answers())
    return rows


def fuse(query: str, by_words: Sequence[Hit], by_meaning: Sequence[Hit]) -> list[Hit]:
    """Combines both rankings by weighted reciprocal-rank fusion; the weight depends on how far the query is a quote.

    score = w / (20 + rank by words) + (1 - w) / (20 + rank by meaning); a hit missing from a ranking gets nothing for
    it. w = max(s², 1 - 4^(3 - n)), limited to 0.02 … 0.98, for the n words of the query (a share s of all its words)
    that occur contiguously, in the same order, in the best full-text hit. So a query that is a quote is ranked by
    words, a query that contains a quote more by words the longer the quote is (a few contiguous words occur by chance),
    any other query by meaning. After Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and
    individual rank learning methods" (2009), which weighs all rankings equally and adds 60.
    """
    num_in_a_row, num_words = words_in_a_row(query, by_words[0].transcript) if by_words else (0, 0)
    share = num_in_a_row / max(num_words, 1)
    weight = min(max(share**2, 1 - 4.0 ** (_NUM_BY_CHANCE - num_in_a_row), _MIN_WEIGHT), 1 - _MIN_WEIGHT)
    scores: dict[str, float] = {}
    hits: dict[str, Hit] = {}
    for found, worth in ((by_words, weight), (by_meaning, 1 - weight)):
        for rank, hit in enumerate(found, 1):
            hits[hit.chunk_id] = hit
            scores[hit.chunk_id] = scores.get(hit.chunk_id, 0.0) + worth / (_RANK_OFFSET + rank)
    return _in_order(replace(hit, score=scores[chunk_id]) for chunk_id, hit in hits.items())


def words_in_a_row(query: str, text: str) -> tuple[int, int]:
    """Returns (length of the longest contiguous run of the query's words in the text, number of the query's words)."""
    runs = _QueryRuns(query)
    return runs.longest_in(text), runs.num_words


class _QueryRuns:
    """The contiguous runs of a query's words, to be looked for in many texts."""

    def __init__(self, query: str) -> None:
        self._words = spaced_words(query)
        self._spaces = [place for place, character in enumerate(self._words) if character == " "]
        self.num_words = len(self._spaces) - 1

    def longest_in(self, text: str) -> int:
        """Returns the length of the longest run that the text has. Looks up at most twice as many runs as there are words."""
        there, words, ends, length = spaced_words(text), self._words, self._spaces[1:], 0
        for first, start in enumerate(self._spaces):
            while first + length < len(ends) and words[start : ends[first + length] + 1] in there:
                length += 1
        return length


def spaced_words(text: str) -> str:
    """Returns the words as full-text search compares them, each with a space before and after it: runs of letters and digits,
    without case and accents. Of a script without blanks, each letter counts as a word."""
    text = f" {text} "
    if not text.isascii():
        for mark in _COMMON_MARKS:
            text = text.replace(mark, " ")
    if not text.isascii():
        text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text)).casefold()
    if not text.isascii():
        return _BETWEEN_WORDS.sub(" ", _LETTER_ALONE.sub(r" \g<0> ", text))
    return " ".join(["", *text.encode().translate(_ASCII_WORDS).decode().split(), ""])  # ten times as fast


def _by_words(table: Any, columns: list[str], query: str, limit: int, where: str | None, is_large: bool) -> Any:
    """Full-text query: BM25 of the words and of the phrase; in a large table of the words only."""
    from lancedb.query import BooleanQuery, MatchQuery, Occur, PhraseQuery

    kinds: tuple[Any, ...] = (MatchQuery, PhraseQuery)  # mypy misreads the defaults of their settings
    parts = [kind(query, "transcript") for kind in kinds]
    words = parts[0] if is_large else BooleanQuery([(Occur.SHOULD, part) for part in parts])
    search = table._table.query().nearest_to_text(words).select([*columns, "_score"])
    return _within(search, where).limit(limit)


def _weighed(query: str, rows: Any, has_windows: bool, limit: int) -> list[Hit]:
    """Returns the best `limit` hits, with scores multiplied by 1 + s² for the share s of the query that occurs contiguously. In a
    table with windows also by 1 + max(0, n - 3) for the n words of that run: a window has so many words that BM25 alone
    ranks others higher."""

    runs = _QueryRuns(query)

    def worth(text: str) -> float:
        num_in_a_row = runs.longest_in(text)
        num_beyond_chance = max(0, num_in_a_row - _NUM_BY_CHANCE) if has_windows else 0
        return (1 + (num_in_a_row / max(runs.num_words, 1)) ** 2) * (1 + num_beyond_chance)

    ids, texts, scores = (rows[name].to_pylist() for name in ("id", "transcript", "_score"))
    weighed = [score * worth(text) for score, text in zip(scores, texts, strict=True)]
    best = heapq.nsmallest(limit, range(len(ids)), key=lambda place: (-weighed[place], ids[place]))
    return _hits_of(rows.take(np.asarray(best, dtype=np.int64)), [weighed[place] for place in best])


def _by_meaning(
    table: Any, columns: list[str], vector: np.ndarray, limit: int, num_read: int, where: str | None
) -> Any:
    """Vector query by cosine. With a vector index, `limit` candidates are re-ranked by their exact vectors. Rows of the
    best `num_read` only are read: for a large table that is half of the search time."""
    search = table._table.query().nearest_to(vector)
    search = search.column("vector").distance_type("cosine").nprobes(NUM_PROBES).refine_factor(-(-limit // num_read))
    return _within(search.select([*columns, "_distance"]), where).limit(num_read)


def _within(search: Any, where: str | None) -> Any:
    return search.where(where) if where else search


def _by_sentences(rows: Any, vector: np.ndarray) -> list[Hit]:
    """Returns the hits of a vector query; windows in the order of `window_scores`."""
    scores, sentences = [1 - distance for distance in rows["_distance"].to_pylist()], sentences_of_rows(rows)
    return _hits_of(rows, scores if sentences is None else window_scores(scores, vector, sentences))


def _hits_of(rows: Any, scores: Sequence[float]) -> list[Hit]:
    """Returns hits with these scores, best first."""
    columns = (rows[name].to_pylist() for name in _HIT_COLUMNS)
    places = (
        map(places_of_json, rows[name].to_pylist()) if name in rows.schema.names else [()] * len(scores)
        for name in ("turns", "times")
    )
    return _in_order(Hit(*each) for each in zip(*columns, scores, *places, strict=True))


def _in_order(hits: Iterable[Hit]) -> list[Hit]:
    return sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))


class FilterOptions(TypedDict, total=False):
    """Keyword arguments of a search, for `Filters.of`."""

    episodes: Names
    speakers: Names


@dataclass(frozen=True, slots=True)
class Filters:
    """Restricts a search to episodes and speakers. Names are compared exactly; an empty tuple matches all."""

    episodes: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()

    @classmethod
    def of(cls, episodes: Names = (), speakers: Names = ()) -> Filters:
        """Raises SettingsError if a single string is given instead of a list: its letters would be taken for names."""
        for name, given in (("episodes", episodes), ("speakers", speakers)):
            if isinstance(given, str):
                raise SettingsError(f"{name}={given!r} is a string; give a list of names, such as [{given!r}]")
        return cls(tuple(dict.fromkeys(episodes)), tuple(dict.fromkeys(speakers)))

    def to_sql(self, has_windows: bool = False) -> str | None:
        """Returns the SQL condition for LanceDB, None if all chunks match. A window matches if one of its speakers does."""
        parts = [is_among("episode", self.episodes)] if self.episodes else []
        if self.speakers:
            parts.append(has_any("speakers", self.speakers) if has_windows else is_among("speaker", self.speakers))
        return " AND ".join(parts) or None
