"""JSON of recognizers, editors and podcast apps: the list of entries that has speakers and the most words. Rows of CSV, TSV and
Parquet are read as its entries."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from midthought.data.rows import rows_of
from midthought.memory.transcripts.reading import Reading, damage_refused
from midthought.memory.turns import (
    UNKNOWN_SPEAKER,
    Segment,
    clock_time,
    mark_times,
    unescape,
    without_unusable_characters,
)

_TEXT = ("text", "transcript", "body", "punctuatedword", "word")
"""Keys of an entry, without case and signs; the first that has a value counts."""
_SPEAKER = ("speaker", "speakername", "speakerlabel", "speakerid")
_START = ("start", "starttime", "time", "timestamps", "timestamp")
_END = ("end", "endtime")
_WORDS = ("wdlist", "words", "sentences")
_LISTS = ("content", "segments", "transcription", "utterances", "paragraphs")
"""Keys of lists of turns, which are read rather than a list of single words."""
_MAX_SECONDS_PER_WORD = 10
"""Nobody speaks so slowly: times with more per word are milliseconds."""
_MAX_TIME = 1e12
_MAX_FIELD_LETTERS = 300
_ONE_FILE = threading.Lock()

Entry = Mapping[str, Any]


class _List(NamedTuple):
    path: tuple[str, ...]
    entries: list[Entry]
    num_words: int
    has_speakers: bool

    def rank(self) -> tuple[bool, bool, int, int]:
        is_known = not self.path or self.path[-1].lower() in _LISTS
        return self.has_speakers, is_known, self.num_words, -len(self.entries)


def is_json(text: str, suffix: str) -> bool:
    """Whether a text starts as a JSON object or a list of objects does; with the suffix of JSON, as any object or list does."""
    start = r"\s*[\[{]" if suffix in (".json", ".jsonl") else r"\s*(?:\{\s*[\"}]|\[\s*\{)"
    return bool(re.match(start, text))


def read_json(text: str) -> Reading:
    """Reads a document, or one object per line. Raises ValueError if it has no list of entries with text."""
    document = _parsed(text)
    found = [each for path, entries in _lists(document) if (each := _list(path, entries)).num_words]
    if not found:
        raise ValueError("no speaker turn found: it has no list of objects with a text, such as {speaker, text, start}")
    best = max(found, key=_List.rank)
    fields = document.items() if isinstance(document, dict) else ()
    header = tuple((str(key), str(value)) for key, value in fields if _is_field(value) and key != "text")
    values = {key.lower(): without_unusable_characters(value) for key, value in header}
    full = _folded(document).get("text", "") if isinstance(document, dict) else ""
    return Reading(
        values.get("episode") or values.get("title"),
        _segments(best.entries, continues=best.path != ("content",)),
        header,
        source=full if isinstance(full, str) else "",
    )


def read_csv(text: str) -> Reading:
    """Reads rows below a row of column names. The separator is the most frequent of comma, semicolon and tab in that row."""
    text = text.lstrip("\n")
    separator = max(",;\t", key=text.split("\n", 1)[0].count)
    with damage_refused("CSV"), _cells_of(len(text)):
        return _read_rows(list(csv.DictReader(io.StringIO(text), delimiter=separator)))


@contextlib.contextmanager
def _cells_of(num_letters: int) -> Iterator[None]:
    """Lets a cell of CSV have so many characters: by default, more than 131,072 are an error. The limit is that of the process,
    so it is never lowered, and one file is read at a time."""
    with _ONE_FILE:
        limit = csv.field_size_limit()
        csv.field_size_limit(max(limit, num_letters))
        try:
            yield
        finally:
            csv.field_size_limit(limit)


def read_parquet(path: Path) -> Reading:
    """Reads the rows of a file. Raises ValueError if they are damaged."""
    with damage_refused("Parquet"):
        return _read_rows([row.value for row in rows_of(path)])


def _read_rows(rows: Sequence[Entry]) -> Reading:
    names = list(rows[0]) if rows else []
    if not set(_TEXT) & set(_folded(dict.fromkeys(filter(None, names)))):
        raise ValueError(f"it has no column named text or transcript; its columns are {', '.join(map(str, names))!r}")
    return Reading(None, _segments(rows))


def _segments(entries: Sequence[Entry], *, continues: bool = True) -> list[Segment]:
    """Returns the segments of entries. One without the key of a speaker `continues` the turn before, or is of nobody."""
    scale = _scale(entries)
    segments = list[Segment]()
    for entry in entries:
        keys = _folded(entry)
        named = [_speaker(keys[key]) for key in _SPEAKER if key in keys]
        speaker = next(filter(None, named), UNKNOWN_SPEAKER if named or not continues else None)
        text = mark_times(unescape(without_unusable_characters(_text(keys))))
        time = _start(keys)
        segments.append(Segment(speaker, text, clock_time(time if isinstance(time, str | None) else time / scale)))
    return segments


def _folded(entry: Entry) -> dict[str, Any]:
    """Returns the values by their keys without case and signs: `startTime`, `start_time` and `Start time` are one."""
    return {_folded_key(str(key)): value for key, value in entry.items()}


@lru_cache(maxsize=1 << 10)
def _folded_key(key: str) -> str:
    return re.sub(r"[\W_]", "", key[:99]).lower()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except ValueError as error:
        lines = [line for line in text.split("\n") if line.strip()]
        try:
            if len(lines) > 1:
                return [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            pass
        raise ValueError(f"it is not valid JSON: {str(error)[:100]}") from None


def _is_field(value: object) -> bool:
    return isinstance(value, (str, int, float)) and 0 < len(str(value)) <= _MAX_FIELD_LETTERS


def _lists(document: object) -> Iterator[tuple[tuple[str, ...], list[Entry]]]:
    """Yields every list of objects by its path. Those at one path in several objects are one; of alternatives one counts."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    waiting: deque[tuple[tuple[str, ...], object]] = deque([((), document)])
    while waiting:
        path, value = waiting.popleft()
        if isinstance(value, dict):
            waiting += [((*path, str(key)), each) for key, each in value.items() if isinstance(each, (dict, list))]
        elif isinstance(value, list):
            value = value[:1] if path and path[-1] == "alternatives" else value
            if value and all(isinstance(each, dict) for each in value):
                found.setdefault(path, []).extend(value)
            waiting += [(path, each) for each in value if isinstance(each, dict)]
    yield from found.items()


def _list(path: tuple[str, ...], entries: list[Entry]) -> _List:
    keys = [_folded(entry) for entry in entries]
    num_words = sum(len(_text(each).split()) for each in keys)
    return _List(path, entries, num_words, any(_speaker(each.get(key)) for each in keys for key in _SPEAKER))


def _text(keys: Entry) -> str:
    """Returns the text of an entry, or that of its words or sentences together."""
    found = next((keys[key] for key in _TEXT if isinstance(keys.get(key), str)), None)
    if found is not None:
        return str(found)
    parts = [part for each in _inner(keys) for key in _TEXT if isinstance(part := each.get(key), str)]
    return ("" if any(part != part.strip() for part in parts) else " ").join(parts)


def _inner(keys: Entry) -> list[dict[str, Any]]:
    lists = [keys[key] for key in _WORDS if isinstance(keys.get(key), list)]
    return [_folded(each) for values in lists for each in values if isinstance(each, dict)]


def _speaker(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("name")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"Speaker {value}"
    return " ".join(without_unusable_characters(value).split()) if isinstance(value, str) else ""


def _time(keys: Entry, names: Sequence[str] = _START) -> float | str | None:
    """Returns the time of an entry: a number, or as it is written."""
    for key in names:
        value = keys.get(key)
        if isinstance(value, dict):  # whisper.cpp: {from, to}
            value = value.get("from")
        if isinstance(value, list):  # transformers: [start, end]
            value = value[0] if value else None
        if isinstance(value, str) and re.fullmatch(r"\d{1,12}(?:\.\d{1,12})?", value):
            value = float(value)
        if isinstance(value, str) or (isinstance(value, (int, float)) and abs(value) < _MAX_TIME):
            return value
    return None


def _start(keys: Entry) -> float | str | None:
    """Returns the time of an entry, or of its first word."""
    return next((time for each in (keys, *_inner(keys)[:1]) if (time := _time(each)) is not None), None)


def _scale(entries: Sequence[Entry]) -> float:
    """Returns 1000 if the times are milliseconds, as AssemblyAI's are, else 1. An entry without an end lasts to the next one."""
    keys = [_folded(entry) for entry in entries]
    starts = [_time(each) for each in keys]
    rates = []
    for each, start, following in zip(keys, starts, [*starts[1:], None], strict=True):
        end, num_words = _time(each, _END) or following, len(_text(each).split())
        if isinstance(start, (int, float)) and isinstance(end, (int, float)) and num_words:
            rates.append((end - start) / num_words)
    return 1000.0 if rates and median(rates) > _MAX_SECONDS_PER_WORD else 1.0
