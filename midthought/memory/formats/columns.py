"""Which column of a table without names, or which unknown key of entries, has the speaker, the text and the times.

Decided by the values: labels recur, times go up, text has the most words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from midthought.memory.formats.line_heads import is_label
from midthought.memory.formats.scripts import is_role, is_unspaced
from midthought.memory.turns import CLOCK

_MIN_ROWS = 3
_MIN_WORDS = 2.0
_MAX_LABEL_LETTERS = 40
_NUMBER = re.compile(rf"\s*(?:\d+(?:\.\d+)?|{CLOCK})\s*")
_NO_SPEAKERS = frozenset({
    "category", "confidence", "emotion", "event", "id", "intent", "kind", "label", "lang", "language", "model",
    "sentiment", "source", "state", "status", "topic", "type",
})  # fmt: skip
"""Keys whose values recur, too."""


def columns_of(rows: Sequence[Sequence[object]]) -> dict[int, str]:
    """Returns the names `text`, `speaker`, `start` and `end` by the number of their column; empty if there is no text."""
    if len(rows) < _MIN_ROWS or len({len(row) for row in rows}) > 1:
        return {}
    columns = [[str(cell) for cell in column] for column in zip(*rows, strict=True)]
    words = [0.0 if _are_numbers(column) else sum(map(_num_words, column)) / len(rows) for column in columns]
    if not words or max(words) < _MIN_WORDS:
        return {}
    names = {words.index(max(words)): "text"}
    for number, column in enumerate(columns):
        if number in names:
            continue
        if "speaker" not in names.values() and are_labels(column):
            names[number] = "speaker"
        elif _are_numbers(column) and _go_up([cell for cell in column if cell.strip()]):
            free = [name for name in ("start", "end") if name not in names.values()]
            names |= {number: free[0]} if free else {}
    return names


def speaker_key(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the key whose values recur as the labels of speakers do, in entries that name none under a known key."""
    keys = {key for entry in entries[:100] for key, value in entry.items() if isinstance(value, str)}
    found = [key for key in sorted(keys - _NO_SPEAKERS) if are_labels([str(entry.get(key) or "") for entry in entries])]
    return found[0] if len(found) == 1 else None


def are_labels(values: Sequence[str]) -> bool:
    """Whether at least two different short values recur, alternate, and have the shape of names, or are all labels such as
    `speaker 1`."""
    different = set(values)
    if len(different) > 1 and all(map(is_role, different)):
        return True
    changes = sum(before != after for before, after in pairwise(values))
    return (
        2 <= len(different) <= max(2, len(values) / 2)
        and changes >= len(different)
        and all(len(value) <= _MAX_LABEL_LETTERS for value in different)
        and sum(map(_is_label, different)) >= 0.8 * len(different)
    )


def _is_label(value: str) -> bool:
    return bool(value) and (is_label(value) or is_label(value.capitalize())) and not value.isdigit()


def _num_words(cell: str) -> float:
    return len(cell.split()) + sum(map(is_unspaced, cell)) / 2


def _are_numbers(column: Sequence[str]) -> bool:
    return all(_NUMBER.fullmatch(cell) or not cell.strip() for cell in column)


def _go_up(cells: Sequence[str]) -> bool:
    numbers = [[float(part) for part in cell.strip().replace(",", ".").split(":")] for cell in cells]
    if all(len(number) == 1 for number in numbers) and all(
        after[0] - before[0] == 1 for before, after in pairwise(numbers)
    ):
        return False  # numbers of rows
    pairs = [(before, after) for before, after in pairwise(numbers) if len(before) == len(after)]
    return bool(pairs) and sum(before <= after for before, after in pairs) >= 0.9 * len(pairs)
