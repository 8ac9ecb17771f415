"""Splits transcripts into chunks: a few words of one speaker, the unit that the memory stores and finds.

`splitting` decides the positions of the cuts. This module does not depend on embeddings or the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from midthought.atomic_files import atomic_path
from midthought.errors import TranscriptError
from midthought.memory.splitting import Chunking, words_of
from midthought.memory.transcripts import Transcript
from midthought.memory.turns import Turn

UNKNOWN_TIME = "00:00:00"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of one turn."""

    chunk_id: str
    """`STEM_NUMBER`, unique in a memory."""
    episode: str
    stem: str
    speaker: str
    transcript: str
    """The words, separated by single blanks."""
    time: str
    """`HH:MM:SS` of the last timestamp at or before the first word; `00:00:00` if there is none."""
    number: int
    """Position within the episode, from 0."""


def chunk_transcript(transcript: Transcript, chunking: Chunking | int = 18) -> list[Chunk]:
    """Splits an episode into chunks. No chunk spans two turns. An integer means: by turns, with at most this many
    words.

    Raises SettingsError if the number is not positive.
    """
    chunking = Chunking("turns", chunking) if isinstance(chunking, int) else chunking
    chunks: list[Chunk] = []
    time = UNKNOWN_TIME
    for turn in transcript.turns:
        words = words_of(turn.text)
        times = _times(turn, words)
        for start, end in chunking.ranges([word.strip() for word in words]):
            while times and times[0][0] <= start:
                time = times.pop(0)[1]
            number = len(chunks)
            text = "".join(words[start:end]).strip()
            chunk_id = chunk_id_of(transcript.stem, number)
            chunks.append(Chunk(chunk_id, transcript.episode, transcript.stem, turn.speaker, text, time, number))
        time = times[-1][1] if times else time
    return chunks


def chunk_id_of(stem: str, number: int) -> str:
    """Returns the id of an episode's chunk; its neighbours have `number - 1` and `number + 1`."""
    return f"{stem}_{number}"


def neighbour_ids(chunk: Chunk, reach: int = 1) -> list[str]:
    """Returns the ids of the chunks at most `reach` before and after this one, in order. Ids past the episode's last
    chunk do not exist in the memory."""
    numbers = range(max(0, chunk.number - reach), chunk.number + reach + 1)
    return [chunk_id_of(chunk.stem, number) for number in numbers if number != chunk.number]


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
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError:
        raise TranscriptError(f"{path}: not UTF-8 text; write it again with 'midthought memory chunk'") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                chunks.append(Chunk(**json.loads(line)))
            except (ValueError, TypeError, RecursionError):
                remedy = "write it again with 'midthought memory chunk'"
                raise TranscriptError(f"{path}, line {number}: not a chunk; {remedy}") from None
    return chunks
