"""Cuts transcripts into chunks: a few words of one speaker, the unit that the memory stores and finds.

Where a turn is cut is a matter of cutting. Knows nothing of embeddings or the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from midthought.errors import TranscriptError
from midthought.memory.splitting import Chunking
from midthought.memory.transcripts import Transcript
from midthought.memory.turns import Turn

UNKNOWN_TIME = "00:00:00"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of one turn."""

    chunk_id: str
    """`STEM_NUMBER`, unique in a memory."""
    episode: str
    stem: str
    speaker: str
    transcript: str
    """The words, with single blanks between them."""
    time: str
    """`HH:MM:SS` of the last time given at or before the first word; `00:00:00` where none was."""
    number: int
    """Counted from 0 within the episode."""


def chunk_transcript(transcript: Transcript, chunking: Chunking | int = 18) -> list[Chunk]:
    """Cut an episode into chunks, none of which crosses from one turn into another. A number: by turns, at most so many words.

    Raises SettingsError where the number is not positive.
    """
    chunking = Chunking("turns", chunking) if isinstance(chunking, int) else chunking
    chunks: list[Chunk] = []
    time = UNKNOWN_TIME
    for turn in transcript.turns:
        words = turn.text.split()
        times = _times(turn)
        for start, end in chunking.ranges(words):
            while times and times[0][0] <= start:
                time = times.pop(0)[1]
            number = len(chunks)
            text = " ".join(words[start:end])
            chunk_id = chunk_id_of(transcript.stem, number)
            chunks.append(Chunk(chunk_id, transcript.episode, transcript.stem, turn.speaker, text, time, number))
        time = times[-1][1] if times else time
    return chunks


def chunk_id_of(stem: str, number: int) -> str:
    """The id of an episode's chunk; its neighbours are those of `number - 1` and `number + 1`."""
    return f"{stem}_{number}"


def neighbour_ids(chunk: Chunk, reach: int = 1) -> list[str]:
    """Ids of the chunks at most `reach` before and after this one, in order; behind an episode's last chunk there is none."""
    numbers = range(max(0, chunk.number - reach), chunk.number + reach + 1)
    return [chunk_id_of(chunk.stem, number) for number in numbers if number != chunk.number]


def _times(turn: Turn) -> list[tuple[int, str]]:
    return [*([(0, turn.time)] if turn.time else []), *turn.marks]


def write_chunks(chunks: Iterable[Chunk], path: str | Path) -> None:
    """Write chunks as JSON lines; the file appears whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            for chunk in chunks:
                file.write(json.dumps(asdict(chunk), ensure_ascii=False) + "\n")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_chunks(path: str | Path) -> list[Chunk]:
    """Read what `write_chunks` wrote. Raises TranscriptError, naming the line, where it is something else."""
    path = Path(path)
    if not path.is_file():
        raise TranscriptError(f"{path}: there is no such file; write it with 'midthought memory chunk'")
    chunks: list[Chunk] = []
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError:
        raise TranscriptError(f"{path}: it is not UTF-8 text; write it again with 'midthought memory chunk'") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                chunks.append(Chunk(**json.loads(line)))
            except (json.JSONDecodeError, TypeError):
                remedy = "write it again with 'midthought memory chunk'"
                raise TranscriptError(f"{path}, line {number}: it is not a chunk; {remedy}") from None
    return chunks
