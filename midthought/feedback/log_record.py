"""One record of a published feedback log: the answer to a problem in one round, its verdict and the feedback on it."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from midthought.feedback.answers import is_right

_ID_COLUMNS = ("unique_id", "question_id", "original_question")
_PROBLEM_COLUMNS = ("problem", "Problem", "question")


class RecordError(ValueError):
    """A record cannot be used; the message says why."""


class Record(NamedTuple):
    """The fields of a record that are used."""

    problem_id: str
    iteration: int
    question: str
    """Empty if the record has it only as part of the history."""
    response: str
    feedback: str
    truth: str
    is_right: bool


def read_record(line: bytes) -> Record:
    """Parses a line of the log. Raises RecordError if a field is missing or has another type than in the published logs."""
    try:
        row = json.loads(line.removeprefix(codecs.BOM_UTF8).decode())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"it is not JSON ({error})") from None
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
        raise RecordError("it contains half of a character (a lone surrogate)") from None
    return record


def rechecked(record: Record, dataset: str) -> Record:
    """The record with its answer compared again with the truth (`answers.is_right`). Raises RecordError without a truth."""
    if not record.truth:
        raise RecordError("it has no normalized_answer to compare its answer with")
    return record._replace(is_right=is_right(dataset, record.response, record.truth))


def _problem_id(row: Mapping[str, Any]) -> str:
    for name in _ID_COLUMNS:
        value = row.get(name)
        if isinstance(value, int | str) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    raise RecordError(f"it does not name its problem; it needs one of: {', '.join(_ID_COLUMNS)}")


def _question(row: Mapping[str, Any], iteration: int, is_correct: bool) -> str:
    """The problem without its history, which the problem's column includes in later rounds and after a wrong answer."""
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
