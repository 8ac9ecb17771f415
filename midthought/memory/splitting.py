"""Positions at which an episode is split: pieces of turns, and windows of sentences, which overlap, so that text at a border is
complete in one of them. Texts that are the same, such as one episode that Whisper wrote as SRT, VTT and JSON, and repeated
passages. Depends on words, not on chunks.

Same texts are found by MinHash of five-word shingles, the 256 smallest hashes of each text (Broder, "On the resemblance and
containment of documents", 1997). The standard error at a similarity of 0.8 is 0.025. Written here because it is 20 lines;
`datasketch` would be a further dependency.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Literal, get_args

import regex

from midthought.errors import SettingsError, near_names
from midthought.memory.minilm import packaged_path
from midthought.memory.turns import UNSPACED_LETTER

ChunkingKind = Literal["turns", "windows"]

DEFAULT_SIZES = {"turns": 18, "windows": 128}
"""Words, or embedded tokens with the context, per chunk."""
DEFAULT_OVERLAPS = {"turns": 0, "windows": 32}
MAX_WINDOW_WORDS = 200
"""Most words that a window displays."""
MAX_SENTENCE_WORDS = 60
"""Longer sentences, for example from a speech recogniser without punctuation, count as several."""
MIN_SENTENCE_WORDS = 6
"""Shorter ones (`Yeah.`, `Right?`) are joined to the next where each sentence has a vector."""

_ABBREVIATIONS = {
    "mr.", "mrs.", "ms.", "dr.", "prof.", "st.", "vs.", "e.g.", "i.e.", "no.", "jr.", "sr.", "u.s.", "approx.",
}  # fmt: skip
_SENTENCE_END = regex.compile(r"[\p{Sentence_Terminal}…]+[\"'\p{Pf}\p{Pe}]*$")
_SENTENCE_START = regex.compile(r"^[¿¡\"'\p{Pi}\p{Ps}]*[\p{L}\p{N}--\p{Ll}]", regex.VERSION1)
"""A capital letter, a digit, or a letter of a script without capitals, after opening signs."""
_CLAUSE_END = regex.compile(r"(?:[,;:—–…،؛、，；：·]|\p{Pe}|--|\.\.\.)[\"'\p{Pf}]?$")
_UNSPACED = regex.compile(UNSPACED_LETTER)
_PIECE = regex.compile(
    rf"[\p{{Pi}}\p{{Ps}}\"']*(?:{UNSPACED_LETTER}\p{{M}}*){{1,2}}[\p{{P}}--[\p{{Pi}}\p{{Ps}}]]*|[^{UNSPACED_LETTER[1:]}+",
    regex.VERSION1,
)
"""About one word of a script without blanks, with the signs around it; or a run of other letters."""
_DASH = re.compile(r"^[-–—]+$")

_CLAUSE_CUT_COST = 1.5
_WORD_CUT_COST = 5.0
_CRUMB_COST = 50.0
_MAX_CRUMB_WORDS = 2


@dataclass(frozen=True, slots=True)
class Chunking:
    """How an episode is split into chunks. A window may span turns; every other chunk has one speaker.

    `turns`: pieces of at most `size` words, split at the ends of sentences and clauses, without overlap. `windows`:
    whole sentences of any number of turns. A vector is computed from sentences of at most `size` MiniLM tokens together
    with the chunk's context; each starts with the previous one's last sentences of at most `overlap` tokens. The window
    displays these sentences and their neighbours, up to 200 words.

    Raises SettingsError for invalid values.
    """

    kind: ChunkingKind = "turns"
    size: int | None = None
    """None: 18 words, or 128 embedded tokens with the context."""
    overlap: int | None = None
    """None: 32 tokens of a window; less if `size` is small."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(ChunkingKind):
            raise SettingsError(f"unknown chunking {self.kind!r}. {near_names(self.kind, get_args(ChunkingKind))}")
        if self.size is not None and self.size < 1:
            raise SettingsError(
                f"a chunk's size must be at least 1, not {self.size}; {DEFAULT_SIZES[self.kind]} is the default"
            )
        if self.kind == "turns" and self.overlap:
            raise SettingsError(f"chunks by turns do not overlap ({self.overlap}); take windows")
        if self.overlap is not None and not 0 <= self.overlap < self.chunk_size:
            raise SettingsError(
                f"an overlap of {self.overlap} must be at least 0 and less than the size, {self.chunk_size}"
            )

    @property
    def chunk_size(self) -> int:
        """Maximum number of words or embedded tokens of a chunk."""
        return self.size or DEFAULT_SIZES[self.kind]

    @property
    def chunk_overlap(self) -> int:
        """Tokens shared with the previous window."""
        return self.overlap if self.overlap is not None else min(DEFAULT_OVERLAPS[self.kind], self.chunk_size // 2)


def windows_of(weights: Sequence[int], size: int, overlap: int) -> list[tuple[int, int]]:
    """Returns (first, after the last) of windows of total weight at most `size`, or of one item; the last reaches the end.

    A window starts with as many of the previous window's last items as weigh at most `overlap`.
    """
    windows: list[tuple[int, int]] = []
    start = end = 0
    while end < len(weights):
        weight = sum(weights[start:end])
        while end < len(weights) and (end == start or weight + weights[end] <= size):
            weight += weights[end]
            end += 1
        windows.append((start, end))
        shared, start = 0, end
        while start > windows[-1][0] + 1 and shared + weights[start - 1] <= overlap:
            shared += weights[start - 1]
            start -= 1
        while start < end < len(weights) and sum(weights[start : end + 1]) > size:
            start += 1  # the next item is so heavy that less overlap fits
    return windows


def words_of(text: str) -> list[str]:
    """Returns the words of a text of single blanks, each with the blank after it, so that they join to the text.

    Scripts without blanks between words are split after two letters, and after their signs.
    """
    if not _UNSPACED.search(text):
        return [f"{word} " for word in text.split(" ")]
    words: list[str] = []
    for token in text.split(" "):
        pieces = _PIECE.findall(token) if _UNSPACED.search(token) else [token]
        words += [*pieces[:-1], f"{pieces[-1]} "]
    return words


def sentence_ends(words: list[str]) -> list[int]:
    """Returns the number of words up to the end of each sentence; the last is all of them."""
    ends: list[int] = []
    start = 0
    for end in range(1, len(words) + 1):
        if end == len(words) or ends_sentence(words[end - 1], words[end]):
            ends += [start + position for position in cut_positions(words[start:end], MAX_SENTENCE_WORDS)]
            start = end
    return ends


def sentences_of(text: str) -> list[str]:
    """Returns the sentences of a text of single blanks; one of fewer than six words together with the next."""
    words = words_of(text)
    ends = sentence_ends([word.strip() for word in words])
    sentences: list[str] = []
    num_words = MIN_SENTENCE_WORDS
    for start, end in zip([0, *ends], ends, strict=False):
        if num_words < MIN_SENTENCE_WORDS:
            sentences[-1] += "".join(words[start:end])
            num_words += end - start
        else:
            sentences.append("".join(words[start:end]))
            num_words = end - start
    return [sentence.strip() for sentence in sentences]


def num_tokens(words: Sequence[str]) -> list[int]:
    """Returns the number of MiniLM tokens of each word, at least 1. As MiniLM splits at blanks first, a text has their sum.

    Raises MissingExtraError if its package is not installed.
    """
    return [max(1, len(encoding.ids)) for encoding in _tokenizer().encode_batch(list(words), add_special_tokens=False)]


@functools.cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(packaged_path() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def pieces_of(words: list[str], max_words: int) -> list[tuple[int, int]]:
    """Returns (first word, word after the last) of each piece of a turn, in order."""
    ends = cut_positions(words, max_words)
    return list(zip([0, *ends], ends, strict=False))


def cut_positions(words: list[str], max_words: int) -> list[int]:
    """Returns the ends of a turn's pieces (the last is `len(words)`), with minimum total cost by dynamic programming.

    A piece of n words costs 1 + (1 - n / max_words)^2, so that pieces are few and of similar length. A cut costs
    nothing at the end of a sentence, 1.5 at the end of a clause, 5 elsewhere. A piece of one or two words costs 50
    more, so there is none if anything else fits.
    """
    num_words = len(words)
    if num_words <= max_words:
        return [num_words]
    shape_cost = [0.0] + [
        1 + (1 - size / max_words) ** 2 + (_CRUMB_COST if size <= _MAX_CRUMB_WORDS else 0)
        for size in range(1, max_words + 1)
    ]
    least = [0.0] * (num_words + 1)  # cost of the best split of the first words
    piece = [0] * (num_words + 1)  # size of its last piece
    for end in range(1, num_words + 1):
        cost, size = min((least[end - size] + shape_cost[size], size) for size in range(1, min(max_words, end) + 1))
        least[end] = cost + (_cut_cost(words[end - 1], words[end]) if end < num_words else 0)
        piece[end] = size
    positions: list[int] = []
    end = num_words
    while end > 0:
        positions.append(end)
        end -= piece[end]
    return positions[::-1]


def _cut_cost(before: str, after: str) -> float:
    """Cost of a cut between two words."""
    if ends_sentence(before, after):
        return 0.0
    return _CLAUSE_CUT_COST if _CLAUSE_END.search(before) or _DASH.match(after) else _WORD_CUT_COST


def ends_sentence(word: str, following: str) -> bool:
    """True if `word` ends a sentence: by its punctuation, if it is no abbreviation, and by the start of the following word."""
    if word[-1:].isalnum():  # most words: ten times as fast
        return False
    if not _SENTENCE_END.search(word) or not _SENTENCE_START.match(following):
        return False
    bare = word.strip("\"'“”‘’()[]").lower()
    is_initial = len(bare) == 2 and bare[0].isalpha() and bare != "i." and bare[1] == "."
    return bare not in _ABBREVIATIONS and not is_initial


WordRun = tuple[str, ...]

_RUN_WORDS = 5
_SKETCH_HASHES = 256
_MIN_REPEATED_SHARE = 0.5
"""Of the shorter text's runs."""
_MIN_SHARE = 0.7
"""Minimum share of common shingles. Files of one episode share nearly all, two episodes of one show about one in eighty."""


def duplicate_groups(texts: Sequence[str]) -> list[list[int]]:
    """Returns groups of two or more texts, by index, whose words match the first text of the group. Case and
    punctuation are ignored."""
    first: dict[int, frozenset[int]] = {}  # sketch of each group's first text
    holders: defaultdict[int, list[int]] = defaultdict(list)  # by hash: groups whose first text has it
    groups: dict[int, list[int]] = {}
    for number, text in enumerate(texts):
        sketch = _sketch(text)
        near = sorted({group for value in _rarest(sketch, holders) for group in holders.get(value, ())})
        group = next((group for group in near if _share(sketch, first[group]) >= _MIN_SHARE), number)
        groups.setdefault(group, []).append(number)
        if group == number:
            first[number] = sketch
            for value in sketch:
                holders[value].append(number)
    return [group for group in groups.values() if len(group) > 1]


def _rarest(sketch: frozenset[int], holders: Mapping[int, Sequence[int]]) -> list[int]:
    """Returns so many of the hashes that a text with the required share of common ones has at least one of them; the rarest,
    because an advertisement's are in every episode of a show."""
    num_others = len(sketch) - math.ceil(_MIN_SHARE * len(sketch))
    return nsmallest(num_others + 1, sketch, key=lambda value: len(holders.get(value, ())))


def word_runs(text: str) -> frozenset[WordRun]:
    """Returns the runs of five words, without case and punctuation; of a shorter text, all of it."""
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(*(words[start:] for start in range(_RUN_WORDS)), strict=False)) or frozenset([tuple(words)])


def is_repeated(runs: frozenset[WordRun], others: Iterable[frozenset[WordRun]]) -> bool:
    """Whether one of the others shares half of the shorter text's runs: ads, intros, neighbouring windows."""
    return any(len(runs & other) >= _MIN_REPEATED_SHARE * min(len(runs), len(other)) for other in others)


def _sketch(text: str) -> frozenset[int]:
    return frozenset(nsmallest(_SKETCH_HASHES, (zlib.crc32(" ".join(run).encode()) for run in word_runs(text))))


def _share(one: frozenset[int], other: frozenset[int]) -> float:
    least = nsmallest(_SKETCH_HASHES, one | other)
    return sum(value in one and value in other for value in least) / len(least)
