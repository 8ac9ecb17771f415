"""One record of a published feedback log: an answer to a problem in one round, its verdict, the feedback on it.

Knows neither the other rounds nor what is made of them.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from midthought.feedback.answers import is_right

_ID_COLUMNS = ("unique_id", "question_id", "original_question")
_PROBLEM_COLUMNS = ("problem", "Problem", "question")


class RecordError(ValueError):
    """Why a record cannot be used."""


class Record(NamedTuple):
    """What is used of a record."""

    problem_id: str
    iteration: int
    question: str
    """Empty where the record does not hold it apart from the history."""
    response: str
    feedback: str
    truth: str
    is_right: bool


def read_record(line: bytes) -> Record:
    """The record in a line of the log. Raises RecordError where something is missing or of another type than published."""
    try:
        row = json.loads(line.removeprefix(codecs.BOM_UTF8).decode())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"it is no JSON ({error})") from None
    if not isinstance(row, Mapping):
        raise RecordError(f"it is of type {type(row).__name__}, not an object")
    iteration, is_correct, truth = row.get("iteration"), row.get("is_correct"), row.get("normalized_answer")
    if not isinstance(iteration, int) or isinstance(iteration, bool) or iteration < 0:
        raise RecordError(f"iteration is {_short(iteration)}; it must be 0 or a count")
    if not isinstance(is_correct, bool):
        raise RecordError(f"is_correct is {_short(is_correct)}; it must be true or false")
    record = Record(
        problem_id=_problem_id(row),
        iteration=iteration,
        question=_question(row, iteration, is_correct),
        response=_response(row),
        feedback=_feedback(row),
        truth=truth if isinstance(truth, str) else "",
        is_right=is_correct,
    )
    try:
        "".join((record.problem_id, record.question, record.response, record.feedback)).encode()
    except UnicodeEncodeError:
        raise RecordError("it holds half of a character (a lone surrogate)") from None
    return record


def rechecked(record: Record, dataset: str) -> Record:
    """The record, its answer compared anew with the truth (`answers.is_right`). Raises RecordError without a truth."""
    if not record.truth:
        raise RecordError("it has no normalized_answer to compare its answer with")
    return record._replace(is_right=is_right(dataset, record.response, record.truth))


def _problem_id(row: Mapping[str, Any]) -> str:
    for name in _ID_COLUMNS:
        value = row.get(name)
        if isinstance(value, int | str) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    raise RecordError(f"nothing says which problem it is of; it needs one of: {', '.join(_ID_COLUMNS)}")


def _question(row: Mapping[str, Any], iteration: int, is_correct: bool) -> str:
    """The problem alone; in later rounds and after a wrong answer, the problem's column holds the history as well."""
    columns = ("original_question", *(_PROBLEM_COLUMNS if iteration == 0 and is_correct else ()))
    for name in columns:
        value = row.get(name)
        if isinstance(value, str) and value.strip():
            return value
    if iteration:
        return ""
    raise RecordError("it has no original_question")


def _response(row: Mapping[str, Any]) -> str:
    said = row.get("full_response")
    if isinstance(said, list) and len(said) == 1 and isinstance(said[0], str):
        return said[0]
    raise RecordError(f"full_response is {_short(said)}; it must be a list of one text")


def _feedback(row: Mapping[str, Any]) -> str:
    said = row.get("feedback")
    if isinstance(said, list) and said:
        said = said[0]
    if said is None or isinstance(said, str):
        return (said or "").strip()
    raise RecordError(f"feedback is {_short(said)}; it must be a text, or a list of a text and its log-probability")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
