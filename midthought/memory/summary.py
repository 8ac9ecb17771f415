"""Summary of reading a folder of transcripts: as rows of a table, and as JSON with every file. Prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midthought.memory.chunks import Chunk
from midthought.memory.transcripts import Transcript, TranscriptFolder

COLUMNS = ("format", "files", "with speakers", "with times", "turns", "words", "repeats dropped", "chunks")


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
        sum(each.num_repeats for each in group),
        sum(num_chunks[each.stem] for each in group),
    )


def notices(folder: TranscriptFolder) -> list[str]:
    """Returns a line for each file that could not be read, with the reason; one for skipped files; one for each group
    of duplicates."""
    lines = [f"not read: {reason}" for _, reason in folder.failures]
    if folder.left_out:
        lines.append(f"left out by name: {_some([str(_relative(path, folder)) for path in folder.left_out])}")
    taken = {transcript.path for transcript in folder.transcripts}
    for group in folder.copies:
        names = [str(_relative(path, folder)) for path in group]
        what = "are all taken (--each-once: the first)" if taken.issuperset(group) else "are taken once, from the first"
        lines.append(f"the same words {what}: {_some(names)}")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def summary_json(folder: TranscriptFolder, chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Returns every file by its path relative to the folder, with its counts."""
    num_chunks = Counter(chunk.stem for chunk in chunks)
    return {
        "num_files": len(folder.transcripts) + len(folder.failures),
        "num_read": len(folder.transcripts),
        "num_failed": len(folder.failures),
        "num_chunks": len(chunks),
        "num_repeats_dropped": sum(each.num_repeats for each in folder.transcripts),
        "files": [
            {
                "path": str(_relative(each.path, folder)),
                "episode": each.episode,
                "stem": each.stem,
                "format": each.format,
                "encoding": each.encoding,
                "speakers": list(each.speakers),
                "has_times": each.has_times,
                "num_turns": len(each.turns),
                "num_words": each.num_words,
                "num_repeats_dropped": each.num_repeats,
                "num_chunks": num_chunks[each.stem],
            }
            for each in folder.transcripts
        ],
        "failed": [{"path": str(_relative(path, folder)), "reason": reason} for path, reason in folder.failures],
        "copies": [[str(_relative(path, folder)) for path in group] for group in folder.copies],
        "left_out": [str(_relative(path, folder)) for path in folder.left_out],
    }


def _relative(path: Path, folder: TranscriptFolder) -> Path:
    return path.relative_to(folder.path) if path.is_relative_to(folder.path) and path != folder.path else path
