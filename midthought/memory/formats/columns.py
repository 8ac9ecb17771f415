"""Which column of a table without names, or which unknown key of entries, has the speaker, the text and the times.

Decided by the values: labels recur, times go up, text has the most words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from midthought.memory.formats.line_heads import is_label
from midthought.memory.formats.scripts import is_diarization_label, is_role, is_unspaced
from midthought.memory.turns import CLOCK

_MIN_ROWS = 3
_MIN_WORDS = 2.0
_MIN_TEXT_WORDS = 4.0
_MAX_LABEL_LETTERS = 40
_MAX_LABELS = 50
_NUMBER = re.compile(rf"\s*(?:\d+(?:\.\d+)?|{CLOCK})\s*")
_NAMES_SPEAKERS = re.compile(
    r"(?i)speak|talker|spreche|locut|habla|falant|parlant|орящ|спикер|actor|person|who\b|who_|party|话|話|发言|發言|화자|참석|المتحدث|דובר"
)
_TEXT_WORD = re.compile(
    r"(?:caption|dialog|dialogue|sentence|speech|subtitle|text|transcript|transcription|utterance)s?|words|"
    r"teks|teksty?|texte|textos?|testo|metin|szöveg|текст|نص|טקסט|文本|字幕|テキスト|텍스트|자막"
)
_WORDS = re.compile(r"[^\W\d_]+")
_COUNTS = [["id"], ["index"], ["number"], ["no"], ["row"], ["episode"], ["season"], ["year"]]
"""Last words of headings whose numbers go up and are no times."""
_NO_SPEAKERS = frozenset({
    "category", "confidence", "emotion", "event", "id", "intent", "kind", "label", "lang", "language", "model",
    "sentiment", "source", "state", "status", "topic", "type",
})  # fmt: skip
"""Keys whose values recur, too."""


def columns_of(rows: Sequence[Sequence[object]], headings: Sequence[str] = ()) -> dict[int, str]:
    """Returns the names `text`, `speaker`, `start` and `end` by the number of their column; empty if there is no text.

    Labels of any shape are speakers under a heading that says so.
    """
    if len(rows) < _MIN_ROWS or len({len(row) for row in rows}) > 1:
        return {}
    columns = [[str(cell) for cell in column] for column in zip(*rows, strict=True)]
    words = [0.0 if are_numbers(column) else sum(map(_num_words, column)) / len(rows) for column in columns]
    voices = [number for number, column in enumerate(columns) if all(map(is_diarization_label, column))]
    if voices:
        words = [0.0 if all(map(is_role, columns[number])) else num for number, num in enumerate(words)]
    if not words or max(words) < (_MIN_WORDS if not voices else 1):
        return {}
    texts = [number for number, heading in enumerate(headings[: len(columns)]) if names_text(heading)] or range(
        len(words)
    )
    names = {max((number for number in texts), key=lambda number: words[number]): "text"}
    named = [number for number, heading in enumerate(headings[: len(columns)]) if names_speakers(heading)]
    labels = [number for number in named if number not in names and _recur(columns[number])]
    others = [number for number, column in enumerate(columns) if number not in names and _recur(column)]
    labels = labels or [number for number in others if are_labels(columns[number])] or others or voices
    if labels:
        names[max(labels, key=lambda number: _label_share(columns[number]))] = "speaker"
    counted = {
        number
        for number, heading in enumerate(headings[: len(columns)])
        if _WORDS.findall(heading.lower())[-1:] in _COUNTS
    }
    for number, column in enumerate(columns):
        if (
            number not in {*names, *counted}
            and are_numbers(column)
            and _go_up([cell for cell in column if cell.strip()])
        ):
            free = [name for name in ("start", "end") if name not in names.values()]
            names |= {number: free[0]} if free else {}
    return names


def text_key(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the key whose values have the most words, if they have several each."""
    keys = {key for entry in entries[:100] for key, value in entry.items() if isinstance(value, str)}
    words = {key: sum(_num_words(str(entry.get(key) or "")) for entry in entries) for key in sorted(keys)}
    longest = max(words, key=lambda key: words[key], default=None)
    return longest if longest and words[longest] >= _MIN_TEXT_WORDS * len(entries) else None


def speaker_key(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the key whose values recur as the labels of speakers do, in entries that name none under a known key."""
    keys = {key for entry in entries[:100] for key, value in entry.items() if isinstance(value, str)}
    values = {key: [str(entry.get(key) or "") for entry in entries] for key in sorted(keys - _NO_SPEAKERS)}
    named = [key for key, said in values.items() if names_speakers(key) and _recur(said)]
    found = named or [key for key, said in values.items() if len(set(said)) <= _MAX_LABELS and are_labels(said)]
    return max(found, key=lambda key: _label_share(values[key]), default=None)


def names_speakers(key: str) -> bool:
    """Whether a key or heading says, in one of several languages, that its values are speakers."""
    return is_role(key) or bool(_NAMES_SPEAKERS.search(key))


def names_text(key: str) -> bool:
    """Whether a word of a key or heading, such as `raw_sentence`, says in one of several languages that its values are text."""
    return any(map(_TEXT_WORD.fullmatch, _WORDS.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", key).lower())))


def are_labels(values: Sequence[str]) -> bool:
    """Whether at least two different short values recur, alternate, and have the shape of names, or are all labels such as
    `speaker 1`."""
    different = set(values)
    if len(different) > 1 and all(map(is_role, different)):
        return True
    return _recur(values) and sum(map(_is_label, different)) >= 0.8 * len(different)


def _recur(values: Sequence[str]) -> bool:
    """Whether at least two different short values recur and alternate."""
    different = set(values)
    changes = sum(before != after for before, after in pairwise(values))
    are_few = 2 <= len(different) <= max(2, len(values) / 2) and changes >= len(different)
    return are_few and all(len(value) <= _MAX_LABEL_LETTERS for value in different)


def _is_label(value: str) -> bool:
    return any(map(str.isalpha, value)) and (is_label(value) or is_label(value.capitalize()))


def _label_share(values: Sequence[str]) -> tuple[float, float, int]:
    """Returns how much the values are like labels of speakers: their shape as written, how often they change, their length."""
    different = set(values)
    changes = sum(before != after for before, after in pairwise(values))
    shaped = sum(is_label(value) for value in different if value)
    return shaped / len(different), round(changes / len(values), 1), max(map(len, different))


def _num_words(cell: str) -> float:
    return len(cell.split()) + sum(map(is_unspaced, cell)) / 2


def are_numbers(column: Sequence[str]) -> bool:
    """Whether all cells that are not empty have numbers or times."""
    return all(_NUMBER.fullmatch(cell) or not cell.strip() for cell in column)


def _go_up(cells: Sequence[str]) -> bool:
    numbers = [[float(part) for part in cell.strip().replace(",", ".").split(":")] for cell in cells]
    if all(len(number) == 1 for number in numbers) and all(
        after[0] - before[0] == 1 for before, after in pairwise(numbers)
    ):
        return False  # numbers of rows
    pairs = [(before, after) for before, after in pairwise(numbers) if len(before) == len(after)]
    return 2 * sum(before < after for before, after in pairs) > len(pairs) and sum(
        before <= after for before, after in pairs
    ) >= 0.9 * len(pairs)
