"""Splits transcripts into chunks, the unit that the memory stores and finds: words of one speaker, or a window of several turns.

`splitting` decides the positions of the cuts. This module does not depend on embeddings or the store.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from midthought.errors import TranscriptError
from midthought.files.regular import atomic_path
from midthought.memory.splitting import (
    MAX_WINDOW_WORDS,
    Chunking,
    num_tokens,
    pieces_of,
    sentence_ends,
    sentences_of,
    windows_of,
    words_of,
)
from midthought.memory.transcripts import Transcript
from midthought.memory.turns import UNKNOWN_SPEAKER, Turn, clock_seconds, clock_time, word_count

UNKNOWN_TIME = "00:00:00"
DISPLAYED_SECONDS = 30
"""A time costs a model about ten tokens to read; 200 words take about 75 seconds to say."""
_NUM_SPECIAL_TOKENS = 2  # of an encoder: one before and one after the text


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of one turn, or a window of several turns."""

    chunk_id: str
    """`STEM_NUMBER`, unique in a memory."""
    episode: str
    stem: str
    speaker: str
    """Of a window: the names of its speakers, joined by commas."""
    transcript: str
    """The words, separated by single blanks."""
    time: str
    """`HH:MM:SS` of the last timestamp at or before the first word; `00:00:00` if there is none."""
    number: int
    """Position within the episode, from 0."""
    turns: tuple[tuple[int, str], ...] = ()
    """Of a window: (number of words before the turn, its speaker) for each turn, in order. Empty: one speaker."""
    embedded: str = ""
    """Of a window: the text that its vector is computed from: episode and speakers, then the words in the middle of the window.
    It is not displayed. Empty: the transcript."""
    times: tuple[tuple[int, str], ...] = ()
    """Of a window: (number of words before it, `HH:MM:SS`) of each later sentence whose time differs from that of the sentence
    before."""

    def __post_init__(self) -> None:
        for name in ("turns", "times"):
            object.__setattr__(self, name, tuple((int(start), str(text)) for start, text in getattr(self, name)))

    @property
    def speakers(self) -> tuple[str, ...]:
        """Each speaker once, in the order of their first words."""
        return tuple(dict.fromkeys(speaker for _, speaker in self.turns)) or (self.speaker,)

    @property
    def embedded_text(self) -> str:
        """The text that the vector is computed from."""
        return self.embedded or self.transcript

    @property
    def embedded_sentences(self) -> list[str]:
        """Of a window: the displayed sentences, each of which has a vector, too."""
        return sentences_of(self.transcript) if self.embedded else []


def words_digest(chunks: Iterable[Chunk]) -> str:
    """Returns ten digits that stand for the words of these chunks: their ids mean other words after another splitting."""
    return hashlib.sha256("\n".join(chunk.transcript for chunk in chunks).encode()).hexdigest()[:10]


def chunk_transcript(transcript: Transcript, chunking: Chunking | int = 18) -> list[Chunk]:
    """Splits an episode into chunks. An integer means: by turns, with at most this many words. Only a window spans turns.

    Raises SettingsError if the number is not positive.
    """
    chunking = Chunking("turns", chunking) if isinstance(chunking, int) else chunking
    if chunking.kind == "windows":
        return _windows(transcript, chunking)
    chunks: list[Chunk] = []
    time = UNKNOWN_TIME
    for turn in transcript.turns:
        words = words_of(turn.text)
        times = _times(turn, words)
        for start, end in pieces_of([word.strip() for word in words], chunking.chunk_size):
            while times and times[0][0] <= start:
                time = times.pop(0)[1]
            number = len(chunks)
            text = "".join(words[start:end]).strip()
            chunk_id = chunk_id_of(transcript.stem, number)
            chunks.append(Chunk(chunk_id, transcript.episode, transcript.stem, turn.speaker, text, time, number))
        time = times[-1][1] if times else time
    return chunks


@dataclass(frozen=True, slots=True)
class _Sentence:
    turn: int
    """Index of the turn among the episode's turns."""
    text: str
    """With the blank after it, if there is one."""
    time: str


def _windows(transcript: Transcript, chunking: Chunking) -> list[Chunk]:
    """Splits an episode into windows of whole sentences; see `Chunking`."""
    sentences = _sentences(transcript)
    lengths = [word_count(sentence.text) for sentence in sentences]
    speakers = list(dict.fromkeys(turn.speaker for turn in transcript.turns))
    reserved = min(sum(num_tokens(_context(transcript.episode, speakers).split())), chunking.chunk_size // 4)
    size = max(chunking.chunk_size - reserved - _NUM_SPECIAL_TOKENS, 1)
    weights = [
        max(sum(num_tokens(sentence.text.split())), math.ceil(length * size / MAX_WINDOW_WORDS))
        for sentence, length in zip(sentences, lengths, strict=True)
    ]
    chunks: list[Chunk] = []
    for first, last in windows_of(weights, size, min(chunking.chunk_overlap, size - 1)):
        start, end = _widened(lengths, first, last)
        text, turns, times = "", list[tuple[int, str]](), list[tuple[int, str]]()
        before: _Sentence | None = None
        for sentence in sentences[start:end]:
            num_before = len(text.split())
            if before is None or sentence.turn != before.turn:
                turns.append((num_before, transcript.turns[sentence.turn].speaker))
            if before is not None and sentence.time != before.time:
                times.append((num_before, sentence.time))
            text += sentence.text
            before = sentence
        middle = sentences[first:last]
        context = _context(
            transcript.episode, list(dict.fromkeys(transcript.turns[each.turn].speaker for each in middle))
        )
        chunks.append(
            Chunk(
                chunk_id=chunk_id_of(transcript.stem, len(chunks)),
                episode=transcript.episode,
                stem=transcript.stem,
                speaker=", ".join(dict.fromkeys(speaker for _, speaker in turns)),
                transcript=text.strip(),
                time=sentences[start].time,
                number=len(chunks),
                turns=tuple(turns),
                embedded=f"{context}\n{''.join(each.text for each in middle).strip()}",
                times=tuple(times),
            )
        )
    return chunks


def _widened(lengths: Sequence[int], first: int, last: int) -> tuple[int, int]:
    """Returns the sentences that a window displays: its own, and those before and after it, alternately, while all together
    have at most 200 words."""
    total = sum(lengths[first:last])
    can_grow = [True, True]
    while any(can_grow):
        for side, number in enumerate((first - 1, last)):
            fits = 0 <= number < len(lengths) and total + lengths[number] <= MAX_WINDOW_WORDS
            can_grow[side] = can_grow[side] and fits
            if can_grow[side]:
                total += lengths[number]
                first, last = (number, last) if side == 0 else (first, number + 1)
    return first, last


def _context(episode: str, speakers: Sequence[str]) -> str:
    """`The Tide Clock. Ann, Bob.`; names that a source does not give are left out."""
    named = ", ".join(speaker for speaker in speakers if speaker != UNKNOWN_SPEAKER)
    return f"{episode}. {named}." if named else f"{episode}."


def _sentences(transcript: Transcript) -> list[_Sentence]:
    sentences: list[_Sentence] = []
    time = UNKNOWN_TIME
    for number, turn in enumerate(transcript.turns):
        words = words_of(turn.text)
        times = _times(turn, words)
        ends = sentence_ends([word.strip() for word in words])
        for start, end in zip([0, *ends], ends, strict=False):
            while times and times[0][0] <= start:
                time = times.pop(0)[1]
            sentences.append(_Sentence(number, "".join(words[start:end]), time))
        time = times[-1][1] if times else time
    return sentences


def with_speakers(chunk: Any) -> str:
    """Returns the words of a chunk or a hit; of a window of several turns each turn after its speaker and its displayed time, if
    there is one: `Ann: So we have … Bob (00:01:12): Yes.`"""
    if len(chunk.turns) < 2:
        return chunk.transcript
    words, times = chunk.transcript.split(), displayed_times(chunk)
    ends = [start for start, _ in chunk.turns[1:]] + [len(words)]
    labels = (f"{speaker} ({times[start]})" if start in times else speaker for start, speaker in chunk.turns)
    spans = zip(labels, chunk.turns, ends, strict=True)
    return " ".join(f"{label}: {' '.join(words[start:end])}" for label, (start, _), end in spans)


def displayed_times(chunk: Any) -> dict[int, str]:
    """Returns the times that are displayed within a window, by the number of words before them: of turns that begin at least
    `DISPLAYED_SECONDS` after the time displayed before."""
    starts, times = {start for start, _ in chunk.turns[1:]}, dict[int, str]()
    last = _seconds(chunk.time)
    for start, time in chunk.times:
        if start in starts and _seconds(time) - last >= DISPLAYED_SECONDS:
            times[start], last = time, _seconds(time)
    return times


def _seconds(time: str) -> float:
    """Minus infinity for what is no time, as another program's memory may have."""
    return clock_seconds(known) if (known := clock_time(time)) else -math.inf


def each_word_once(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Returns the chunks; a window without its first words if the window before, of the same episode, ends with them."""
    return [*chunks[:1], *itertools.starmap(_without_repeats, itertools.pairwise(chunks))]


def _without_repeats(before: Chunk, after: Chunk) -> Chunk:
    """Returns `after` without its first words if `before` ends with them, as consecutive windows do."""
    if not after.turns or before.stem != after.stem:
        return after
    said, words = before.transcript.split(), after.transcript.split()
    shared = next((num for num in range(min(len(said), len(words)), 0, -1) if said[-num:] == words[:num]), 0)
    turns = [(max(start - shared, 0), speaker) for start, speaker in after.turns]
    last = max((number for number, (start, _) in enumerate(turns) if start == 0), default=0)
    return replace(
        after,
        transcript=" ".join(words[shared:]),
        turns=tuple(turns[last:]),
        speaker=turns[last][1],
        time=next((time for start, time in reversed(after.times) if start <= shared), after.time),
        times=tuple((start - shared, time) for start, time in after.times if start > shared),
    )


def chunk_id_of(stem: str, number: int) -> str:
    """Returns the id of an episode's chunk; its neighbours have `number - 1` and `number + 1`."""
    return f"{stem}_{number}"


def _times(turn: Turn, words: list[str]) -> list[tuple[int, str]]:
    """Returns the times by the number of words before them; `marks` count words that blanks separate."""
    ends = [0, *(number for number, word in enumerate(words, 1) if word.endswith(" "))]
    return [*([(0, turn.time)] if turn.time else []), *((ends[number], time) for number, time in turn.marks)]


def write_chunks(chunks: Iterable[Chunk], path: str | Path) -> None:
    """Writes chunks as JSON lines, atomically."""
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8") as file:
        for chunk in chunks:
            file.write(json.dumps(asdict(chunk), ensure_ascii=False) + "\n")


def read_chunks(path: str | Path) -> list[Chunk]:
    """Reads a file of `write_chunks`. Raises TranscriptError, with the line number, if it is not such a file."""
    path = Path(path)
    if not path.is_file():
        raise TranscriptError(f"{path}: there is no such file; write it with 'midthought memory chunk'")
    chunks: list[Chunk] = []
    require_types = TypeAdapter(Chunk).validate_json
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError:
        raise TranscriptError(f"{path}: not UTF-8 text; write it again with 'midthought memory chunk'") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                require_types(line, strict=True)
                chunks.append(Chunk(**json.loads(line)))  # which refuses other keys, too
            except (ValueError, TypeError):
                remedy = "write it again with 'midthought memory chunk'"
                raise TranscriptError(f"{path}, line {number}: not a chunk; {remedy}") from None
    return chunks
