"""JSON: the original's `content`, `segments` of the podcast namespace and of Whisper, lists of whisper.cpp and others."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format
from midthought.memory.markup import mark_times
from midthought.memory.turns import Segment, clock_time, without_unusable_characters

Entry = dict[str, Any]

_START = re.compile(r"\s*(?:\{|\[\s*(?:[\[\]{\"]|-?\d+\s*[],]|null|true|false))")
_STRONG_START = re.compile(r"\s*(?:\{\s*(?:\"|\})|\[\s*(?:\{|\]))")
"""A start that is JSON's in a file of any suffix; `[1]` and `[null` are not."""
_LISTS = ("content", "segments", "transcription", "chunks", "utterances")
_SPEAKER_KEYS = ("speaker", "speaker_name", "speaker_id")


def _is_json(text: str, suffix: str) -> bool:
    return bool(_STRONG_START.match(text) or (suffix == ".json" and _START.match(text)))


@transcript_format(
    "JSON",
    suffixes=(".json",),
    remedy="give it {'speakers', 'episode', 'content': [{'speaker', 'transcript', 'time'}]} or {'segments': [...]}",
    shown_by=_is_json,
)
def read_json(text: str) -> Reading:
    """`{speakers, episode, content: [{speaker, transcript, time}]}`, or `{segments: [...]}`, or the list by itself.

    Segments have the keys of podcast apps (`speaker, startTime, body`), of Whisper (`start, text` or `words`, optionally
    `speaker`), of editors with a timestamp per word (`speaker_id, wdlist: [{word, start}]`), of whisper.cpp
    (`timestamps`) or of transformers (`timestamp`). Also read: one such object per line, and `{text}` alone.
    """
    document = _parsed(text)
    if isinstance(document, list):
        return Reading(None, list(_segments(_entries(document, "the list"))))
    if isinstance(document, dict):
        title = document.get("episode") or document.get("title")
        title = without_unusable_characters(title) if isinstance(title, str) else None
        for key in _LISTS:
            if isinstance(entries := document.get(key), list):
                read = _content if key == "content" else _segments
                return Reading(title, list(read(_entries(entries, repr(key)))))
        if text := _words(document, "text", "transcript"):
            return Reading(title, [Segment(None, mark_times(text))])
    raise ValueError("the JSON has neither a 'content' nor a 'segments' list")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        lines = [line for line in text.split("\n") if line.strip()]
        if error.msg == "Extra data" and len(lines) > 1 and all(line.lstrip().startswith("{") for line in lines):
            with contextlib.suppress(ValueError, RecursionError):
                return [json.loads(line) for line in lines]
        raise ValueError(f"it is not valid JSON ({error.msg}, line {error.lineno} column {error.colno})") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except ValueError:  # int() refuses numbers of thousands of digits
        raise ValueError("its JSON has a number that is too long") from None


def _entries(entries: list[Any], where: str) -> list[Entry]:
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"the entries of {where} are not all objects")
    return entries


def _content(entries: Sequence[Entry]) -> Iterator[Segment]:
    """One turn per entry of the original transcript files."""
    for entry in entries:
        words = mark_times(_words(entry, "transcript", "text"))
        yield Segment(_speaker(entry), words, clock_time(entry.get("time")), begins_turn=True)


def _segments(entries: Sequence[Entry]) -> Iterator[Segment]:
    for entry in entries:
        speaker, start = _speaker(entry), _start(entry)
        timed = [word for key in ("wdlist", "words") for word in _dicts(entry.get(key))]
        words = _words(entry, "body", "text", "transcript")
        if timed and (not words or (speaker is None and any(_speaker(word) for word in timed))):
            yield from _timed_words(speaker, start, timed)
        elif words.strip():
            start = start if start is not None else next(iter(filter(None, map(_start, timed))), None)
            yield Segment(speaker, mark_times(words), start)


def _timed_words(speaker: str | None, start: str | None, timed: Sequence[Entry]) -> Iterator[Segment]:
    """Joins consecutive words of one speaker to a segment; words include their own blanks, or none at all."""
    spoken = [(_speaker(word) or speaker, _words(word, "word", "text"), _start(word)) for word in timed]
    glue = "" if any(words != words.strip() for _, words, _ in spoken) else " "
    running: list[str] = []
    who, when = spoken[0][0], start or spoken[0][2]
    for name, words, time in spoken:
        if name != who and running:
            yield Segment(who, mark_times(glue.join(running)), when)
            running, when = [], time
        who = name
        running.append(words)
    if "".join(running).strip():
        yield Segment(who, mark_times(glue.join(running)), when)


def _start(entry: Entry) -> str | None:
    """Returns `HH:MM:SS` of an entry's start, under any of the known keys."""
    for key in ("startTime", "start", "time"):
        if (value := entry.get(key)) is not None:
            return clock_time(value)
    span, times = entry.get("timestamp"), entry.get("timestamps")
    if isinstance(span, list) and span:
        return clock_time(span[0])
    return clock_time(times.get("from")) if isinstance(times, dict) else clock_time(span)


def _speaker(entry: Entry) -> str | None:
    """Returns the name under the first key that has one; a number gives `Speaker 1`."""
    for key in _SPEAKER_KEYS:
        value = entry.get(key)
        if isinstance(value, dict):
            value = value.get("name")
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:
            return f"Speaker {value}"
        if isinstance(value, str) and (name := " ".join(without_unusable_characters(value).split())):
            return name
    return None


def _words(entry: Entry, *keys: str) -> str:
    """Returns the first non-empty string under these keys, else an empty string."""
    found = (value for key in keys if isinstance(value := entry.get(key), str) and value.strip())
    return without_unusable_characters(next(found, ""))


def _dicts(value: object) -> list[Entry]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
