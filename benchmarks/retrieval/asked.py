"""Queries, and the places of their answers in the episodes, counted in words, independent of the chunking."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from midthought.memory.chunks import Chunk
from midthought.memory.transcripts import Transcript

QUOTE_LENGTHS = (4, 5, 6, 7, 8)
MAX_POINTER_WORDS = 8


@dataclass(frozen=True, slots=True)
class Place:
    """The words `start` to `end` (not included) of an episode, signs without letters not counted."""

    stem: str
    start: int
    end: int

    def overlaps(self, other: Place) -> bool:
        return self.stem == other.stem and self.start < other.end and other.start < self.end

    def covers(self, other: Place) -> bool:
        return self.stem == other.stem and self.start <= other.start and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Asked:
    """One query and the place of its answer."""

    text: str
    place: Place
    is_quote: bool
    first_wording: str = ""
    """Before it was rewritten, if it was; it decides whether the question is for tuning."""

    @property
    def num_words(self) -> int:
        return len(words_of(self.text))

    def is_answered_by(self, chunk: Place) -> bool:
        """The chunk must contain all of a quote; it must overlap a question's passage."""
        return chunk.covers(self.place) if self.is_quote else chunk.overlaps(self.place)


def words_of(text: str) -> list[str]:
    """Words as they are compared: without case and punctuation."""
    bare = ("".join(sign for sign in word.casefold() if sign.isalnum()) for word in text.split())
    return [word for word in bare if word]


class Episodes:
    """The words of all episodes, to find places in."""

    def __init__(self, transcripts: Iterable[Transcript]) -> None:
        self.words = {
            transcript.stem: words_of(" ".join(turn.text for turn in transcript.turns)) for transcript in transcripts
        }

    def find(self, stem: str, quote: Sequence[str], first: int = 0) -> Iterator[int]:
        """Indices of the words at which the quote begins in this episode, from `first` on."""
        words, quote = self.words[stem], list(quote)
        for start in range(first, len(words) - len(quote) + 1):
            if words[start : start + len(quote)] == quote:
                yield start

    def passage(self, stem: str, begins: str, ends: str) -> Place:
        """The passage between two pointers. Raises ValueError if one of them is too long or does not occur exactly once."""
        if stem not in self.words:
            raise ValueError(f"{stem!r} is none of the episodes: {', '.join(sorted(self.words))}")
        for pointer in (begins, ends):
            num_found = len(list(self.find(stem, words_of(pointer))))
            if num_found != 1 or len(pointer.split()) > MAX_POINTER_WORDS:
                remedy = f"give at most {MAX_POINTER_WORDS} words that occur once"
                raise ValueError(f"{stem}: {pointer!r} occurs {num_found} times; {remedy}")
        start, last = next(self.find(stem, words_of(begins))), next(self.find(stem, words_of(ends)))
        if last + len(words_of(ends)) <= start:
            raise ValueError(f"{stem}: {ends!r} occurs before {begins!r}")
        return Place(stem, start, last + len(words_of(ends)))

    def places_of(self, chunks: Iterable[Chunk]) -> dict[str, Place]:
        """The place of every chunk, by its id; chunks of an episode come in order, each after the last or overlapping it."""
        places: dict[str, Place] = {}
        last = {stem: Place(stem, 0, 0) for stem in self.words}
        for chunk in chunks:
            words, before = words_of(chunk.transcript), last[chunk.stem]
            if self.words[chunk.stem][before.end : before.end + len(words)] == words:
                start: int | None = before.end
            else:
                start = next(self.find(chunk.stem, words, before.start), None)
            if start is None:
                raise ValueError(f"{chunk.chunk_id}: its words do not follow the previous chunk in the episode")
            places[chunk.chunk_id] = last[chunk.stem] = Place(chunk.stem, start, start + len(words))
        return places


def read_questions(path: Path, episodes: Episodes) -> list[Asked]:
    """The questions of a file as README.md describes it."""
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        Asked(
            record["question"],
            episodes.passage(record["stem"], record["begins"], record["ends"]),
            is_quote=False,
            first_wording=record.get("first_wording", ""),
        )
        for record in records
    ]


def draw_quotes(
    chunks: Sequence[Chunk], places: Mapping[str, Place], episodes: Episodes, num_quotes: int, seed: int
) -> list[Asked]:
    """Runs of 4 to 8 words, equally many of each length, from chunks drawn by the seed.

    A run occurs once in all episodes, and each chunk gives at most one. There are fewer if the episodes have no more.
    """
    counts = {length: _count_runs(episodes, length) for length in QUOTE_LENGTHS}
    draw = random.Random(seed)
    quotes: list[Asked] = []
    for chunk in draw.sample(list(chunks), len(chunks)):
        if len(quotes) == num_quotes:
            break
        length = QUOTE_LENGTHS[len(quotes) % len(QUOTE_LENGTHS)]
        words = [word for word in chunk.transcript.split() if words_of(word)]
        starts = [
            start
            for start in range(len(words) - length + 1)
            if counts[length][tuple(words_of(" ".join(words[start : start + length])))] == 1
        ]
        if starts:
            start = draw.choice(starts)
            first = places[chunk.chunk_id].start + start
            place = Place(chunk.stem, first, first + length)
            quotes.append(Asked(" ".join(words[start : start + length]), place, is_quote=True))
    return quotes


def _count_runs(episodes: Episodes, length: int) -> Counter[tuple[str, ...]]:
    return Counter(
        tuple(words[start : start + length])
        for words in episodes.words.values()
        for start in range(len(words) - length + 1)
    )
