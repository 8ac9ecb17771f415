"""JSON that is no list of entries: one list per column, such as `{"texts": […], "speakers": […]}`, and a transcript's text under
a key of an inner object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midthought.memory.formats.columns import columns_of, names_text
from midthought.memory.formats.line_reading import MIN_PROSE_WORDS
from midthought.memory.formats.scripts import word_count

_TRANSCRIPT_KEYS = frozenset(
    {"transcript", "transcription", "transcripttext", "fulltext", "fulltranscript", "rawtranscript"}
)
_MAX_DEPTH = 8
_Shape = tuple[Any, ...] | int


def with_rows(document: object, depth: int = 0) -> object:
    """Returns the document with entries `{speaker, text, start}` instead of lists of equal shape, if one of these has texts and
    another one labels or times."""
    if not isinstance(document, dict) or depth > _MAX_DEPTH:
        return document
    document = {key: with_rows(value, depth + 1) for key, value in document.items()}
    by_shape: dict[_Shape, dict[str, list[object]]] = {}
    for key, value in document.items():
        if isinstance(value, list) and (flat := _flat(value)) and len(flat[1]) > 2:
            by_shape.setdefault(flat[0], {})[str(key)] = flat[1]
    for columns in by_shape.values():
        rows = list(zip(*columns.values(), strict=True))
        names = columns_of(rows, list(columns)) if len(columns) > 1 else {}
        if {"text", "speaker"} <= set(names.values()) or {"text", "start"} <= set(names.values()):
            first = next(key for number, key in enumerate(columns) if names.get(number) == "text")
            entries = [{name: row[number] for number, name in names.items()} for row in rows]
            kept = {
                key: value for number, key in enumerate(columns) for value in [document[key]] if number not in names
            }
            document = {key: value for key, value in document.items() if key not in columns} | kept | {first: entries}
    return document


def _flat(values: list[object]) -> tuple[_Shape, list[object]] | None:
    """Returns the lengths of a list, or of the lists in it, and its cells; None if these are no texts or numbers."""
    if all(isinstance(value, (str, int, float)) for value in values):
        return len(values), values
    if all(isinstance(value, list) for value in values):
        parts = [
            _flat(value) if all(isinstance(cell, (str, int, float)) for cell in value) else None
            for value in values
            if isinstance(value, list)
        ]
        if all(parts):
            return tuple(part[0] for part in parts if part), [cell for part in parts if part for cell in part[1]]
    return None


def inner_transcript(document: object) -> tuple[str, str] | None:
    """Returns the key and the text of the longest transcript in a document or its inner objects, if it is long."""
    found: list[tuple[str, str]] = []
    waiting: list[Mapping[Any, Any]] = [document] if isinstance(document, dict) else []
    for _ in range(_MAX_DEPTH):
        found += [
            (str(key), value)
            for each in waiting
            for key, value in each.items()
            if isinstance(value, str) and _folded(key) in _TRANSCRIPT_KEYS
        ]
        waiting = [value for each in waiting for value in each.values() if isinstance(value, dict)]
    longest = max(found, key=lambda each: word_count(each[1]), default=None)
    return longest if longest and word_count(longest[1]) >= MIN_PROSE_WORDS else None


def is_only_text(key: str, entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a key of entries says that its values are text, such as `subtitle`, and they have no other texts."""
    others = {
        name
        for entry in entries
        for name, value in entry.items()
        if isinstance(value, str) and name not in (key, "text")
    }
    return names_text(key) and not others


def _folded(key: object) -> str:
    return str(key).lower().replace("_", "").replace("-", "")
