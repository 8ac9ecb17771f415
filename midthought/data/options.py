"""Options of a row with a multiple-choice question: their texts, and the letter of the right one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midthought.data.problems.prompts import LETTERS

_COLUMNS = ("choices", "options")


def options_of(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the texts of the options and their names in the row, which are letters unless the row has others.

    The column `choices` or `options` is a list of two to ten texts, or a mapping of `text` and `label` to lists (ARC). Anything
    else is no multiple-choice question: two empty lists.
    """
    for column, value in row.items():
        if str(column).casefold() not in _COLUMNS:
            continue
        value, names = (value.get("text"), value.get("label")) if isinstance(value, Mapping) else (value, None)
        texts, names = _texts(value), _texts(names) or list(LETTERS)
        if 2 <= len(texts) <= min(len(LETTERS), len(names)):
            return texts, names[: len(texts)]
    return [], []


def letter_of(answer: Any, options: Sequence[str], names: Sequence[str]) -> str | None:
    """Returns the letter of the right option, which `answer` names: an index from 0 (also as digits), its name, or its text. None
    if it names none.

    >>> letter_of(2, ["a", "b", "c"], "ABC"), letter_of("b", ["a", "b", "c"], "ABC"), letter_of("(C)", ["a", "b", "c"], "ABC")
    ('C', 'B', 'C')
    """
    if isinstance(answer, bool) or not isinstance(answer, int | str):
        return None
    text = str(answer).strip()
    if isinstance(answer, str) and text in options:
        return LETTERS[list(options).index(text)]
    return named_letter(text, len(options), names if isinstance(answer, str) else ())


def named_letter(answer: str, num_options: int, names: Sequence[str] = LETTERS) -> str | None:
    """Returns the letter of the option that `answer` names, by name (`B`, `(b)`) or index from 0; None if it names none."""
    plain, upper = answer.strip("() .").upper(), [name.upper() for name in names]
    if plain in upper:
        place = upper.index(plain)
    else:
        place = int(answer) if answer.isascii() and answer.isdigit() and len(answer) < 3 else -1
    return LETTERS[place] if 0 <= place < num_options else None


def _texts(value: Any) -> list[str]:
    """Returns a list of texts or numbers as texts; empty for anything else."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    is_plain = all(isinstance(each, str | int | float) and str(each).strip() for each in value)
    return [str(each).strip() for each in value] if is_plain else []
