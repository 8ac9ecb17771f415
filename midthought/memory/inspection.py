"""How the files of a folder were understood: lines and a table to print, and JSON with every file. Prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from midthought.memory.chunks import Chunk
from midthought.memory.transcripts import Transcript, TranscriptFolder
from midthought.memory.transcripts.folder_settings import EXAMPLE, FILE_NAME
from midthought.memory.turns import is_diarization_label, word_count

COLUMNS = ("format", "files", "with speakers", "with times", "turns", "words", "chunks")
_NUM_FIRST_TURNS = 3
_MAX_LETTERS = 160
_MAX_SKIPPED = 5
_MAX_LINES = 20


def inspection_json(folder: TranscriptFolder, chunks: Sequence[Chunk] | None = None) -> dict[str, Any]:
    """Returns every file by its path relative to the folder, with its number of chunks if these are given."""
    files = [{"path": folder.name_of(each.path)} | _inspected(each) for each in folder.transcripts]
    counts: dict[str, int] = {}
    if chunks is not None:
        counts = {"num_chunks": len(chunks)}
        num_chunks = Counter(chunk.stem for chunk in chunks)
        for file in files:
            file["num_chunks"] = num_chunks[file["name"]]
    return {
        "num_files": len(folder.transcripts) + len(folder.failures),
        "num_read": len(folder.transcripts),
        "num_failed": len(folder.failures),
        "num_doubtful": len(folder.doubtful),
        **counts,
        "files": files,
        "failed": [{"path": folder.name_of(path), "reason": reason} for path, reason in folder.failures],
        "copies": [[folder.name_of(path) for path in group] for group in folder.copies],
        "left_out": [folder.name_of(path) for path in folder.left_out],
    }


def inspection_lines(folder: TranscriptFolder) -> Iterator[str]:
    """Yields the same as lines to print, files that fail a check first."""
    for transcript in sorted(folder.transcripts, key=lambda each: not each.is_doubtful):
        yield from _lines(folder.name_of(transcript.path), _inspected(transcript))
    for path, reason in folder.failures:
        yield f"{folder.name_of(path)}: not read: {reason}"
    for path in folder.left_out:
        yield f"{folder.name_of(path)}: left out by its name"
    if folder.doubtful or folder.failures:
        yield f"If lines of text were misunderstood, say in {FILE_NAME} how turns start, such as {EXAMPLE} (docs/memory.md)"
    yield f"{len(folder.transcripts)} files read, {len(folder.doubtful)} of them doubtful; {len(folder.failures)} not read"


def summary_rows(folder: TranscriptFolder, chunks: Sequence[Chunk]) -> list[tuple[str | int, ...]]:
    """Returns one row per format, with the columns COLUMNS, and a row for all if there are several formats."""
    num_chunks = Counter(chunk.stem for chunk in chunks)

    def row(name: str, group: Sequence[Transcript]) -> tuple[str | int, ...]:
        num_named, num_timed = sum(bool(each.speakers) for each in group), sum(each.has_times for each in group)
        num_turns, num_words = sum(len(each.turns) for each in group), sum(each.num_words for each in group)
        return (
            name,
            len(group),
            num_named,
            num_timed,
            num_turns,
            num_words,
            sum(num_chunks[each.stem] for each in group),
        )

    forms = sorted({each.format for each in folder.transcripts})
    rows = [row(form, [each for each in folder.transcripts if each.format == form]) for form in forms]
    return [*rows, row("all", folder.transcripts)] if len(rows) > 1 else rows


def notices(folder: TranscriptFolder) -> list[str]:
    """Returns a line for each file that could not be read, or fails a check, with the reason; one for skipped
    files; one for each group of duplicates. At most 20 of each."""
    lines = _first([f"not read: {reason}" for _, reason in folder.failures], "cannot be read")
    lines += _first(doubt_lines(folder), "are doubtful")
    if folder.left_out:
        lines.append(f"left out by name: {_some([folder.name_of(path) for path in folder.left_out])}")
    taken = {transcript.path for transcript in folder.transcripts}
    copies = list[str]()
    for group in folder.copies:
        names = [folder.name_of(path) for path in group]
        what = "are all taken (--each-once: the first)" if taken.issuperset(group) else "are taken once, from the first"
        copies.append(f"the same words {what}: {_some(names)}")
    return lines + _first(copies, "are in groups of the same words")


def doubt_lines(folder: TranscriptFolder) -> list[str]:
    """Returns a line for each file that fails a check, with the checks and where to look."""
    return [
        f"doubtful: {folder.name_of(each.path)}: {'; '.join(each.doubts)} (look at it with 'midthought memory inspect')"
        for each in folder.doubtful
    ]


def _inspected(transcript: Transcript) -> dict[str, Any]:
    """Returns how one file was understood, as JSON values."""
    return {
        "format": transcript.format,
        "encoding": transcript.encoding,
        "style": transcript.style,
        "doubtful": transcript.is_doubtful,
        "doubts": list(transcript.doubts),
        "episode": transcript.episode,
        "name": transcript.stem,
        "header": [list(pair) for pair in transcript.header],
        "speakers": _speakers(transcript),
        "num_turns": len(transcript.turns),
        "num_words": transcript.num_words,
        "has_times": transcript.has_times,
        "first_turns": [
            {"speaker": turn.speaker, "time": turn.time, "text": _cut(turn.text)}
            for turn in transcript.turns[:_NUM_FIRST_TURNS]
        ],
        "skipped": [{"text": _cut(each.text), "reason": each.reason} for each in transcript.skipped],
    }


def _speakers(transcript: Transcript) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for turn in transcript.turns:
        labelled = {"name": turn.speaker, "is_label": is_diarization_label(turn.speaker), "turns": 0, "words": 0}
        speaker = found.setdefault(turn.speaker, labelled)
        speaker["turns"] += 1
        speaker["words"] += word_count(turn.text)
    return list(found.values())


def _lines(name: str, seen: Mapping[str, Any]) -> Iterator[str]:
    doubtful = ", DOUBTFUL" if seen["doubtful"] else ""
    style = f", style {seen['style']!r}" if seen["style"] else ""
    yield f"{name}: {seen['format']} ({seen['encoding']}){style}{doubtful}"
    yield f"  episode: {seen['episode']} (named {seen['name']!r})"
    for doubt in seen["doubts"]:
        yield f"  doubt: {doubt}"
    for key, value in seen["header"]:
        yield f"  header: {key + ': ' if key else ''}{_cut(value)}"
    for speaker in seen["speakers"]:
        label = " (a label; name it in speakers.yaml)" if speaker["is_label"] else ""
        yield f"  speaker: {speaker['name']}{label}: {speaker['turns']} turns, {speaker['words']} words"
    for turn in seen["first_turns"]:
        yield f"  > {turn['time'] or '--:--:--'} {turn['speaker']}: {turn['text']}"
    for each in seen["skipped"][:_MAX_SKIPPED]:
        yield f"  skipped, {each['reason']}: {each['text']}"
    if (num := len(seen["skipped"]) - _MAX_SKIPPED) > 0:
        yield f"  skipped: {num} more"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]}…"


def _first(lines: list[str], what: str) -> list[str]:
    """Returns the first lines, and how many there are more."""
    num_left = len(lines) - _MAX_LINES
    return lines if num_left <= 0 else [*lines[:_MAX_LINES], f"{num_left:,} more files {what} (--json lists all)"]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
