"""Summary of reading a folder of transcripts: as rows of a table, and as JSON with every file. Prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from midthought.memory.chunks import Chunk
from midthought.memory.inspection import inspected
from midthought.memory.transcripts import Transcript, TranscriptFolder

COLUMNS = ("format", "files", "with speakers", "with times", "turns", "words", "chunks")
_MAX_LINES = 20


def summary_rows(folder: TranscriptFolder, chunks: Sequence[Chunk]) -> list[tuple[str | int, ...]]:
    """Returns one row per format, with the columns COLUMNS, and a row for all if there are several formats."""
    by_format: dict[str, list[Transcript]] = {}
    for transcript in folder.transcripts:
        by_format.setdefault(transcript.format, []).append(transcript)
    num_chunks = Counter(chunk.stem for chunk in chunks)
    groups = sorted(by_format.items())
    if len(groups) > 1:
        groups.append(("all", list(folder.transcripts)))
    return [(name, *_counts(group, num_chunks)) for name, group in groups]


def _counts(group: Sequence[Transcript], num_chunks: Counter[str]) -> tuple[int, ...]:
    return (
        len(group),
        sum(bool(each.speakers) for each in group),
        sum(each.has_times for each in group),
        sum(len(each.turns) for each in group),
        sum(each.num_words for each in group),
        sum(num_chunks[each.stem] for each in group),
    )


def notices(folder: TranscriptFolder) -> list[str]:
    """Returns a line for each file that could not be read, or fails a check, with the reason; one for skipped
    files; one for each group of duplicates, and each file of settings that is not used. At most 20 of each."""
    lines = _first([f"not read: {reason}" for _, reason in folder.failures], "cannot be read")
    lines += _first(doubt_lines(folder), "are doubtful")
    lines += folder.unused_settings
    if folder.left_out:
        lines.append(f"left out by name: {_some([folder.name_of(path) for path in folder.left_out])}")
    taken = {transcript.path for transcript in folder.transcripts}
    copies = list[str]()
    for group in folder.copies:
        names = [folder.name_of(path) for path in group]
        what = "are all taken (--each-once: the first)" if taken.issuperset(group) else "are taken once, from the first"
        copies.append(f"the same words {what}: {_some(names)}")
    lines += _first(copies, "are in groups of the same words")
    return lines


def doubt_lines(folder: TranscriptFolder) -> list[str]:
    """Returns a line for each file that fails a check, with the checks and where to look."""
    return [
        f"doubtful: {folder.name_of(each.path)}: {'; '.join(each.doubts)} (look at it with 'midthought memory inspect')"
        for each in folder.doubtful
    ]


def _first(lines: list[str], what: str) -> list[str]:
    """Returns the first lines, and how many there are more."""
    num_left = len(lines) - _MAX_LINES
    return lines if num_left <= 0 else [*lines[:_MAX_LINES], f"{num_left:,} more files {what} (--json lists all)"]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def summary_json(folder: TranscriptFolder, chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Returns every file by its path relative to the folder, with its counts."""
    num_chunks = Counter(chunk.stem for chunk in chunks)
    return {
        "num_files": len(folder.transcripts) + len(folder.failures),
        "num_read": len(folder.transcripts),
        "num_failed": len(folder.failures),
        "num_doubtful": len(folder.doubtful),
        "num_chunks": len(chunks),
        "files": [
            {"path": folder.name_of(each.path)} | inspected(each) | {"num_chunks": num_chunks[each.stem]}
            for each in folder.transcripts
        ],
        "failed": [{"path": folder.name_of(path), "reason": reason} for path, reason in folder.failures],
        "copies": [[folder.name_of(path) for path in group] for group in folder.copies],
        "left_out": [folder.name_of(path) for path in folder.left_out],
        "unused_settings": list(folder.unused_settings),
    }
