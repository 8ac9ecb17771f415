"""Cuts transcripts into chunks: a few words of one speaker, the unit that the memory stores and finds.

Knows nothing of embeddings or the store.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from midthought.errors import SettingsError, TranscriptError
from midthought.memory.transcripts import Transcript
from midthought.memory.turns import Turn

UNKNOWN_TIME = "00:00:00"

_ABBREVIATIONS = {
    "mr.",
    "mrs.",
    "ms.",
    "dr.",
    "prof.",
    "st.",
    "vs.",
    "e.g.",
    "i.e.",
    "no.",
    "jr.",
    "sr.",
    "u.s.",
    "approx.",
}
_SENTENCE_END = re.compile(r"[.!?…][.!?…]*[\"'”’)\]]*$")
_SENTENCE_START = re.compile(r"^[\"'“‘(\[]*[^\W_a-zß-ÿ]")
_CLAUSE_END = re.compile(r"(?:[,;:—–)\]…]|--|\.\.\.)[\"'”’]?$")
_DASH = re.compile(r"^[-–—]+$")

_CLAUSE_CUT_COST = 1.5
_WORD_CUT_COST = 5.0
_CRUMB_COST = 50.0
_MAX_CRUMB_WORDS = 2


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


def chunk_transcript(transcript: Transcript, max_words: int = 18) -> list[Chunk]:
    """Cut an episode into chunks of at most `max_words` words, none of which crosses from one turn into another.

    Raises SettingsError where `max_words` is not positive.
    """
    if max_words < 1:
        raise SettingsError(f"max_words must be at least 1, not {max_words}; 18 is the default")
    chunks: list[Chunk] = []
    time = UNKNOWN_TIME
    for turn in transcript.turns:
        words = turn.text.split()
        times = _times(turn)
        start = 0
        for end in cut_positions(words, max_words):
            while times and times[0][0] <= start:
                time = times.pop(0)[1]
            number = len(chunks)
            text = " ".join(words[start:end])
            chunk_id = f"{transcript.stem}_{number}"
            chunks.append(Chunk(chunk_id, transcript.episode, transcript.stem, turn.speaker, text, time, number))
            start = end
        time = times[-1][1] if times else time
    return chunks


def _times(turn: Turn) -> list[tuple[int, str]]:
    return [*([(0, turn.time)] if turn.time else []), *turn.marks]


def cut_positions(words: list[str], max_words: int) -> list[int]:
    """Where to end the pieces of a turn (the last is `len(words)`), at the least total cost by dynamic programming.

    A piece of n words costs 1 + (1 - n / max_words)^2, so pieces are few and of like length. A cut costs nothing at a
    sentence's end, 1.5 at a clause's end and 5 elsewhere. A piece of one or two words costs 50 more: none is made where
    anything else fits.
    """
    num_words = len(words)
    if num_words <= max_words:
        return [num_words]
    shape_cost = [0.0] + [
        1 + (1 - size / max_words) ** 2 + (_CRUMB_COST if size <= _MAX_CRUMB_WORDS else 0)
        for size in range(1, max_words + 1)
    ]
    least = [0.0] * (num_words + 1)  # cost of the best cutting of the first words
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
    """What it costs to cut between two words."""
    if ends_sentence(before, after):
        return 0.0
    return _CLAUSE_CUT_COST if _CLAUSE_END.search(before) or _DASH.match(after) else _WORD_CUT_COST


def ends_sentence(word: str, following: str) -> bool:
    """True where `word` closes a sentence: by its punctuation, as no abbreviation, and by how what follows begins."""
    if not _SENTENCE_END.search(word) or not _SENTENCE_START.match(following):
        return False
    bare = word.strip("\"'“”‘’()[]").lower()
    is_initial = len(bare) == 2 and bare[0].isalpha() and bare != "i." and bare[1] == "."
    return bare not in _ABBREVIATIONS and not is_initial


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
