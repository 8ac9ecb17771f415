"""The file of questions with what is relevant to each. Does not depend on a memory.

JSON lines, a JSON list, CSV, TSV or Parquet; a row has `question` and one of `chunk_ids` and `passages`. The files that
`midthought memory questions` writes are read, too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from midthought.data.abstention import has_no_answer
from midthought.data.rows import Row, rows_of
from midthought.errors import DataError

Unit = Literal["chunk", "passage"]
"""What a relevant item is: a chunk (its id), or a passage (its words)."""

FORM = (
    'write {"question": "…", "chunk_ids": ["tide_7"]} or {"question": "…", "passages": ["words of the transcript"]} on each '
    "line, optionally with kind and episodes"
)
_QUESTION_KEYS, _LIST_KEYS = ("question", "prompt", "query"), ("chunk_ids", "evidence", "passages", "passage")


@dataclass(frozen=True, slots=True)
class RetrievalQuestion:
    """A question and what a search for it should find."""

    text: str
    relevant: tuple[str, ...]
    """Chunk ids or passages, each once. Empty: the memory has no answer, and the question is not measured."""
    unit: Unit = "chunk"
    kind: str = ""
    """For separate figures."""
    episodes: tuple[str, ...] = ()
    """Episodes that are searched; empty: all."""


def read_retrieval_questions(path: str | Path, max_questions: int | None = None) -> list[RetrievalQuestion]:
    """Returns the first questions of a file. Raises DataError, with the row, if one is not of the form above."""
    questions = [_question(row) for row in itertools.islice(rows_of(str(path)), max_questions)]
    if not questions:
        raise DataError(f"{path}: it has no questions; {FORM}")
    return questions


def _question(row: Row) -> RetrievalQuestion:
    value = row.value
    if row.problem or not isinstance(value, Mapping):
        raise DataError(f"{row.where}: {row.problem or 'it is not an object'}; {FORM}")
    text = next((value[key] for key in _QUESTION_KEYS if key in value), None)
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{row.where}: it has no question, only {', '.join(map(str, value)) or 'nothing'}; {FORM}")
    labels = value.get("labels")
    kind = value.get("kind") or (labels.get("kind") if isinstance(labels, Mapping) else "") or ""
    if has_no_answer(kind, value.get("answer")):
        return RetrievalQuestion(text, (), kind=str(kind), episodes=_strings(row, "episodes"))
    given = [key for key in _LIST_KEYS if value.get(key) not in (None, "")]
    if len(given) > 1 or not any(key in value for key in _LIST_KEYS):
        raise DataError(f"{row.where}: it has {' and '.join(given) or 'nothing that is relevant'}; {FORM}")
    unit: Unit = "passage" if given and given[0].startswith("passage") else "chunk"
    relevant = _strings(row, given[0]) if given else ()
    return RetrievalQuestion(text, relevant, unit, str(kind), _strings(row, "episodes"))


def _strings(row: Row, key: str) -> tuple[str, ...]:
    """Returns the strings of a list, of a JSON list in a cell of CSV, or a single one."""
    value = row.value.get(key)
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise DataError(f"{row.where}: {key} is not a JSON list: {value[:60]!r}") from None
    values: Sequence[Any] = [value] if isinstance(value, str) and value else value or ()
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(one, str) for one in values):
        raise DataError(f"{row.where}: {key} is {value!r:.60}, not a list of strings; {FORM}")
    return tuple(dict.fromkeys(values))
