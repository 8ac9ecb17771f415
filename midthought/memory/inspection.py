"""How each file of a folder was understood: format, style, failed checks, speakers, first turns, skipped text. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from midthought.memory.scripts import is_diarization_label, word_count
from midthought.memory.transcripts import Transcript, TranscriptFolder
from midthought.memory.transcripts.notation import EXAMPLE, FILE_NAME

_NUM_FIRST_TURNS = 3
_MAX_LETTERS = 160
_MAX_SKIPPED = 5


def inspected(transcript: Transcript) -> dict[str, Any]:
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


def inspection_json(folder: TranscriptFolder) -> dict[str, Any]:
    """Returns every file by its path relative to the folder."""
    return {
        "files": [{"path": folder.name_of(each.path)} | inspected(each) for each in folder.transcripts],
        "failed": [{"path": folder.name_of(path), "reason": reason} for path, reason in folder.failures],
        "left_out": [folder.name_of(path) for path in folder.left_out],
        "unused_settings": list(folder.unused_settings),
        "num_doubtful": len(folder.doubtful),
    }


def inspection_lines(folder: TranscriptFolder) -> Iterator[str]:
    """Yields the same as lines to print, files that fail a check first."""
    for transcript in sorted(folder.transcripts, key=lambda each: not each.is_doubtful):
        yield from _lines(folder.name_of(transcript.path), inspected(transcript))
    for path, reason in folder.failures:
        yield f"{folder.name_of(path)}: not read: {reason}"
    for path in folder.left_out:
        yield f"{folder.name_of(path)}: left out by its name"
    yield from folder.unused_settings
    if folder.doubtful or folder.failures:
        yield f"If lines of text were misunderstood, say in {FILE_NAME} how turns start, such as {EXAMPLE} (docs/memory.md)"
    yield f"{len(folder.transcripts)} files read, {len(folder.doubtful)} of them doubtful; {len(folder.failures)} not read"


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


def _speakers(transcript: Transcript) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for turn in transcript.turns:
        labelled = {"name": turn.speaker, "is_label": is_diarization_label(turn.speaker), "turns": 0, "words": 0}
        speaker = found.setdefault(turn.speaker, labelled)
        speaker["turns"] += 1
        speaker["words"] += word_count(turn.text)
    return list(found.values())


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]}…"
