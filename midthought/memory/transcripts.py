"""Reads a transcript file, or a folder of them, into episodes with turns. The formats stand in formats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from midthought.errors import TranscriptError
from midthought.memory.formats import READERS
from midthought.memory.turns import Turn

__all__ = ["Transcript", "TranscriptFolder", "Turn", "read_transcript", "read_transcripts"]

_IGNORED_STEMS = {"readme", "license", "licence", "copying", "notice", "contributing"}
_SUMMARY_NAMES = {
    "scraping_summary.json",
    "conversion_summary.json",
    "embeddings_summary.json",
    "generation_summary.json",
}
_ACRONYMS = {"afk", "ai", "api", "css", "html", "js", "qa", "rfc", "sql", "tv", "ui", "ux"}
_REMEDIES = {
    ".md": "write each turn as '**Speaker:** text'",
    ".txt": "write each turn as 'Name (00:00:29):' or 'Name: text'",
    ".json": "give it {'speakers', 'episode', 'content': [{'speaker', 'transcript', 'time'}]} or {'segments': [...]}",
    ".srt": "give it cues with 'HH:MM:SS,mmm --> HH:MM:SS,mmm' and words",
    ".vtt": "give it cues with 'HH:MM:SS.mmm --> HH:MM:SS.mmm' and words",
}


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode."""

    episode: str
    """The title: the source's own, else made from the file's name."""
    stem: str
    """The file's name without its suffix; within one folder read together, unique. Chunk ids begin with it."""
    turns: tuple[Turn, ...]
    path: Path


@dataclass(frozen=True, slots=True)
class TranscriptFolder:
    """What a folder held: the transcripts, by relative path, and the files that could not be read."""

    transcripts: tuple[Transcript, ...]
    failures: tuple[tuple[Path, str], ...]

    def require_all(self) -> tuple[Transcript, ...]:
        """The transcripts; raises TranscriptError where any file could not be read."""
        if self.failures:
            raise TranscriptError(_failure_message(self.failures))
        return self.transcripts


def read_transcript(path: str | Path) -> Transcript:
    """Read one file. Raises TranscriptError, naming the file, the reason and the remedy."""
    path = Path(path)
    suffix = path.suffix.lower()
    if not path.is_file():
        raise TranscriptError(f"{path}: there is no such file; give the path of a transcript or of a folder of them")
    if suffix not in READERS:
        raise TranscriptError(f"{path}: {suffix or 'no suffix'} is not a known format; known: {' '.join(READERS)}")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TranscriptError(f"{path}: it is not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    except OSError as error:
        raise TranscriptError(
            f"{path}: it cannot be read ({error.strerror}); check the file and its permissions"
        ) from None
    try:
        title, turns = READERS[suffix](text.replace("\r\n", "\n").replace("\r", "\n"))
    except ValueError as error:
        raise TranscriptError(f"{path}: {error}; {_REMEDIES[suffix]}") from None
    if not turns:
        raise TranscriptError(f"{path}: no turn of a speaker was found; {_REMEDIES[suffix]}")
    return Transcript(" ".join((title or "").split()) or title_of(path.stem), path.stem, tuple(turns), path)


def read_transcripts(folder: str | Path) -> TranscriptFolder:
    """Read every transcript below `folder` (or the one file that it names).

    Licences, READMEs, summaries, hidden files and unknown suffixes are left out. Raises TranscriptError where the path
    is missing or nothing below it can be read; single files that cannot be read are `failures`.
    """
    folder = Path(folder)
    if folder.is_file():
        return TranscriptFolder((read_transcript(folder),), ())
    if not folder.is_dir():
        raise TranscriptError(f"{folder}: there is no such file or folder; give the path of your transcripts")
    transcripts: list[Transcript] = []
    failures: list[tuple[Path, str]] = []
    for path in _transcript_paths(folder):
        try:
            transcripts.append(read_transcript(path))
        except TranscriptError as error:
            failures.append((path, str(error)))
    if not transcripts and failures:
        raise TranscriptError(_failure_message(failures))
    if not transcripts:
        raise TranscriptError(
            f"{folder}: no transcript in this folder; put files there that end in {' '.join(READERS)}"
        )
    return TranscriptFolder(tuple(_with_unique_stems(transcripts, folder)), tuple(failures))


def title_of(stem: str) -> str:
    """`practical-ai-110` gives `Practical AI 110`."""
    words = [word for word in re.split(r"[-_.\s]+", stem) if word]
    return " ".join(word.upper() if word.lower() in _ACRONYMS else word[0].upper() + word[1:] for word in words) or stem


def _transcript_paths(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        ignored = path.stem.lower() in _IGNORED_STEMS or path.name in _SUMMARY_NAMES
        if path.suffix.lower() in READERS and not hidden and not ignored and path.is_file():
            yield path


def _with_unique_stems(transcripts: list[Transcript], folder: Path) -> list[Transcript]:
    """Files of one name get the folders' names before it, and the suffix behind it where that is not enough."""

    def tell_apart(name_of: str) -> None:
        counts = Counter(transcript.stem for transcript in transcripts)
        for number, transcript in enumerate(transcripts):
            if counts[transcript.stem] > 1:
                relative = transcript.path.relative_to(folder)
                stem = relative if name_of == "path" else relative.with_suffix("")
                transcripts[number] = replace(transcript, stem="-".join(stem.parts))

    tell_apart("folders")
    tell_apart("path")
    return transcripts


def _failure_message(failures: tuple[tuple[Path, str], ...] | list[tuple[Path, str]]) -> str:
    more = f" (and {len(failures) - 1} more files that cannot be read)" if len(failures) > 1 else ""
    return failures[0][1] + more
