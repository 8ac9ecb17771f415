"""What was said, sentence by sentence, read back from the chunks of a memory.

Chunks may cut sentences and may overlap. Does not depend on a language beyond the ends of its sentences.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from midthought.memory.chunks import Chunk
from midthought.memory.splitting import sentence_ends, words_of

MIN_OVERLAP_WORDS = 3
"""A chunk that starts with this many words of the end of the chunk before repeats them; fewer only among windows."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a turn."""

    text: str
    """With its punctuation; words are separated by single blanks."""
    chunk_ids: tuple[str, ...]
    """The chunks that hold it, in order."""
    time: str
    """`HH:MM:SS` of its first chunk; `00:00:00` if the source has no times."""


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """The sentences of one speaker until another one speaks."""

    stem: str
    episode: str
    speaker: str
    sentences: tuple[Sentence, ...]


def spoken_turns(chunks: Iterable[Chunk]) -> list[SpokenTurn]:
    """Returns the turns of all episodes, in the order of their chunks."""
    by_episode: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        by_episode[chunk.stem].append(chunk)
    turns: list[SpokenTurn] = []
    for of_episode in by_episode.values():
        ordered = sorted(of_episode, key=lambda chunk: chunk.number)
        least = 1 if _do_overlap(ordered) else MIN_OVERLAP_WORDS
        together: list[Chunk] = []
        for chunk in ordered:
            if together and chunk.speaker != together[-1].speaker:
                turns.append(_turn(together, least))
                together = []
            together.append(chunk)
        turns.append(_turn(together, least))
    return turns


def _turn(chunks: list[Chunk], min_overlap: int) -> SpokenTurn:
    words: list[str] = []
    holders: list[list[Chunk]] = []  # of each word
    for chunk in chunks:
        own = words_of(chunk.transcript)
        shared = _overlap(words, own, min_overlap)
        for place in range(len(words) - shared, len(words)):
            holders[place].append(chunk)
        words += own[shared:]
        holders += [[chunk] for _ in own[shared:]]
    sentences = []
    start = 0
    for end in sentence_ends([word.strip() for word in words]):
        held = {chunk.chunk_id: chunk for place in holders[start:end] for chunk in place[:1]}
        first = next(iter(held.values()))
        sentences.append(Sentence("".join(words[start:end]).strip(), tuple(held), first.time))
        start = end
    return SpokenTurn(chunks[0].stem, chunks[0].episode, chunks[0].speaker, tuple(sentences))


def _do_overlap(chunks: list[Chunk]) -> bool:
    """Whether chunks of an episode are windows that repeat words of the window before: at least every fifth does."""
    texts = [words_of(chunk.transcript) for chunk in chunks]
    num_shared = sum(_overlap(first, second, MIN_OVERLAP_WORDS) > 0 for first, second in pairwise(texts))
    return 5 * num_shared >= len(chunks)


def _overlap(before: list[str], after: list[str], min_size: int) -> int:
    """Returns the number of words, 0 or at least `min_size`, at the end of `before` with which `after` starts."""
    for size in range(min(len(before), len(after)), min_size - 1, -1):
        if [word.strip() for word in before[-size:]] == [word.strip() for word in after[:size]]:
            return size
    return 0


def plain_words(text: str) -> list[str]:
    """Returns the words without case and signs around them; apostrophes and hyphens within words stay."""
    return re.findall(r"\w+(?:['’.-]\w+)*", text.lower().replace("’", "'"))
