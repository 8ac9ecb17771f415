"""What was said, sentence by sentence, read back from the chunks of a memory.

Chunks may cut sentences, may overlap, and may hold several speakers. Does not depend on a language beyond the ends of its
sentences.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from midthought.memory.chunks import Chunk, displayed_times
from midthought.memory.splitting import Chunking, sentence_ends, words_of

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
    """`HH:MM:SS` of the last timestamp at or before its first word that the chunks tell; `00:00:00` if the source has none."""
    displayed_time: str
    """The last time that a search result with its first chunk displays before it."""
    words_since_time: int
    """Number of words between the timestamp of `time` and its first word; at most so many if the chunks do not tell exactly."""


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """The sentences of one speaker until another one speaks."""

    stem: str
    episode: str
    speaker: str
    sentences: tuple[Sentence, ...]


def spoken_turns(chunks: Iterable[Chunk]) -> list[SpokenTurn]:
    """Returns the turns of all episodes, in the order of their chunks. Windows of several turns are taken apart."""
    by_episode: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        by_episode[chunk.stem].append(chunk)
    turns: list[SpokenTurn] = []
    for of_episode in by_episode.values():
        ordered = sorted(of_episode, key=lambda chunk: chunk.number)
        if any(chunk.turns for chunk in ordered):
            turns += _turns_of_windows(ordered)
            continue
        least = 1 if _do_overlap(ordered) else MIN_OVERLAP_WORDS
        since = _words_since_times(ordered)
        for _, together in itertools.groupby(ordered, key=lambda chunk: chunk.speaker):
            turns.append(_turn(list(together), least, since))
    return turns


def one_speaker_chunks(chunks: Sequence[Chunk], max_words: int = 18) -> Sequence[Chunk]:
    """Returns the chunks, or, if there are windows among them, what was said in chunks of one speaker and at most so many words.

    No chunk of the memory has their ids.
    """
    if not any(chunk.turns for chunk in chunks):
        return chunks
    pieces: list[Chunk] = []
    for turn in spoken_turns(chunks):
        words = words_of(" ".join(sentence.text for sentence in turn.sentences))
        for start, end in Chunking("turns", max_words).ranges([word.strip() for word in words]):
            text, number = "".join(words[start:end]).strip(), len(pieces)
            time = turn.sentences[0].time
            pieces.append(Chunk(f"{turn.stem}:{number}", turn.episode, turn.stem, turn.speaker, text, time, number))
    return pieces


def _words_since_times(chunks: list[Chunk]) -> dict[str, int]:
    """Returns by chunk the most words that may be between its timestamp and its first word. The timestamp of a new time is said
    in the chunk before, after its first word; if another speaker begins, before the chunk's first word."""
    since, num_words = {chunks[0].chunk_id: 0}, 0
    for before, chunk in itertools.pairwise(chunks):
        begins = chunk.time != before.time and chunk.speaker != before.speaker
        num_words = 0 if begins else len(words_of(before.transcript)) + (num_words if chunk.time == before.time else 0)
        since[chunk.chunk_id] = num_words
    return since


def _turn(chunks: list[Chunk], min_overlap: int, since: dict[str, int]) -> SpokenTurn:
    words: list[str] = []
    holders: list[Chunk] = []  # of each word: the first chunk that has it
    starts: dict[str, int] = {}
    for chunk in chunks:
        own = words_of(chunk.transcript)
        shared = _overlap(words, own, min_overlap)
        starts[chunk.chunk_id] = len(words) - shared
        words += own[shared:]
        holders += [chunk] * (len(own) - shared)

    def held_by(start: int, end: int) -> list[Chunk]:
        return list({chunk.chunk_id: chunk for chunk in holders[start:end]}.values())

    def times_at(start: int, held: Chunk) -> tuple[str, str, int]:
        return held.time, held.time, since[held.chunk_id] + start - starts[held.chunk_id]

    return _spoken(chunks[0], chunks[0].speaker, words, (0, len(words)), held_by, times_at)


def _turns_of_windows(windows: list[Chunk]) -> list[SpokenTurn]:
    """The chunk of a sentence is the window in whose middle it is, of those that hold all of it."""
    words: list[str] = []
    speakers: list[str] = []
    spans: list[tuple[int, int, Chunk]] = []
    starts: dict[str, int] = {}
    times: dict[int, str] = {}
    for window in windows:
        own = words_of(window.transcript)
        shared = _overlap(words, own, 1)
        start = starts[window.chunk_id] = len(words) - shared
        spans.append((start, start + len(own), window))
        places = _places_of_words(own)
        times |= {start: window.time} | {start + _at(places, number): time for number, time in window.times}
        words += own[shared:]
        speakers += _speakers_of(window, own)[shared:]

    def held_by(start: int, end: int) -> list[Chunk]:
        whole = [span for span in spans if span[0] <= start and end <= span[1]]
        nearest = min(whole, key=lambda span: abs(span[0] + span[1] - start - end), default=None)
        return [nearest[2]] if nearest else [span[2] for span in spans if span[0] < end and start < span[1]]

    changes = sorted(times.items())
    changes = changes[:1] + [new for old, new in itertools.pairwise(changes) if new[1] != old[1]]

    def times_at(start: int, held: Chunk) -> tuple[str, str, int]:
        num_before = sum(word.endswith(" ") for word in words[starts[held.chunk_id] : start])
        displayed = [time for place, time in displayed_times(held).items() if place <= num_before]
        place, time = changes[bisect_right(changes, start, key=itemgetter(0)) - 1]
        return time, displayed[-1] if displayed else held.time, start - place

    ends = [place for place in range(1, len(words)) if speakers[place] != speakers[place - 1]] + [len(words)]
    between = zip([0, *ends], ends, strict=False)
    return [_spoken(windows[0], speakers[start], words, (start, end), held_by, times_at) for start, end in between]


def _places_of_words(words: list[str]) -> list[int]:
    """Returns the index of the first of these words after each number of words between blanks, which `Chunk.turns` counts."""
    return [0, *(place for place, word in enumerate(words, 1) if word.endswith(" "))]


def _at(places: list[int], number: int) -> int:
    """A chunk that was edited by hand may have fewer words than its turns say."""
    return places[min(max(number, 0), len(places) - 1)]


def _speakers_of(window: Chunk, words: list[str]) -> list[str]:
    """Returns the speaker of each of the window's words."""
    places = _places_of_words(words)
    starts = {_at(places, number): speaker for number, speaker in window.turns}
    speakers, speaker = list[str](), window.speaker
    for place in range(len(words)):
        speaker = starts.get(place, speaker)
        speakers.append(speaker)
    return speakers


def _spoken(
    first: Chunk,
    speaker: str,
    words: list[str],
    span: tuple[int, int],
    held_by: Callable[[int, int], list[Chunk]],
    times_at: Callable[[int, Chunk], tuple[str, str, int]],
) -> SpokenTurn:
    """`times_at(start, its first chunk)`: both times of a sentence, and the words since the first."""
    sentences = []
    start = span[0]
    for end in sentence_ends([word.strip() for word in words[slice(*span)]]):
        chunks = held_by(start, span[0] + end)
        text = "".join(words[start : span[0] + end]).strip()
        times = times_at(start, chunks[0])
        sentences.append(Sentence(text, tuple(chunk.chunk_id for chunk in chunks), *times))
        start = span[0] + end
    return SpokenTurn(first.stem, first.episode, speaker, tuple(sentences))


def _do_overlap(chunks: list[Chunk]) -> bool:
    """Whether chunks of an episode are windows that repeat words of the window before: at least every fifth does."""
    texts = [words_of(chunk.transcript) for chunk in chunks]
    num_shared = sum(_overlap(first, second, MIN_OVERLAP_WORDS) > 0 for first, second in itertools.pairwise(texts))
    return 5 * num_shared >= len(chunks)


def _overlap(before: list[str], after: list[str], min_size: int) -> int:
    """Returns the number of words, 0 or at least `min_size`, at the end of `before` with which `after` starts."""
    most = min(len(before), len(after))
    end, start = ([word.strip() for word in words] for words in (before[len(before) - most :], after[:most]))
    sizes = (size for size in range(most, min_size - 1, -1) if end[most - size] == start[0])
    return next((size for size in sizes if end[most - size :] == start[:size]), 0)


def plain_words(text: str) -> list[str]:
    """Returns the words without case and signs around them; apostrophes and hyphens within words stay."""
    return re.findall(r"\w+(?:['’.-]\w+)*", text.lower().replace("’", "'"))
