"""Converts published feedback logs (one record per problem and round) to tool-calling conversations in Parquet, for SFT.

Reads the log twice, line by line: first to index the offset of each round on disk, then to read the rounds that are needed.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from midthought.errors import DataError
from midthought.feedback.log_record import Record, RecordError, read_record, rechecked
from midthought.feedback.parquet import pyarrow, write_parquet
from midthought.feedback.problems.prompts import prompt_of
from midthought.feedback.prompts import DEFINITION, SYSTEM_PROMPT, TOOL_NAME, wrong_answer_result

if TYPE_CHECKING:
    import pyarrow as pa

KINDS = ("right at once", "one feedback", "two feedbacks")
"""Kinds of conversation; the index is the number of feedbacks in it. Later rounds of a log are not used."""

_NEVER_RIGHT = (
    "wrong, and not tried again",
    "wrong after one feedback, and not tried again",
    "wrong after two feedbacks",
)


@dataclass(slots=True)
class ConversionReport:
    """Counts of a conversion."""

    conversations: Counter[str] = field(default_factory=Counter)
    """Number of each of `KINDS`."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason -> number of problems without a conversation."""
    num_bad_rows: int = 0
    num_later_rounds: int = 0
    """Records of rounds that are not used."""


class _Round(NamedTuple):
    """Offset of a record in the file, and the fields that decide whether it is used."""

    problem: int
    iteration: int
    offset: int
    is_right: bool
    has_response: bool
    has_feedback: bool


def convert(
    source: str | Path,
    out: str | Path,
    *,
    dataset: str = "math",
    strict: bool = False,
    recheck: bool = False,
    tell: Callable[[str], None] = lambda words: None,
) -> ConversionReport:
    """Converts a log (JSON lines, the iteration schema) to `out` (Parquet, columns `messages` and `tools`).

    A conversation is system, user and the assistant's answer. A wrong answer is followed by a call of `get_feedback` with the
    whole answer, the result in the tool's wording and the next answer; the last answer is right and has no call. Each problem
    that was right in round 0, 1 or 2 gives one conversation, in the order of first appearance.

    Args:
        source: the log.
        out: written atomically; memory does not grow with the log.
        dataset: selects the prompt's request for the form of the answer.
        strict: raise at the first bad record; otherwise bad records are reported, counted and left out.
        recheck: compare answers with the log's `normalized_answer` (`answers.is_right`) instead of trusting `is_correct`.
        tell: receives a line per bad record.

    Raises DataError if the log cannot be read or gives no conversation; MissingExtraError without pyarrow.
    """
    source, out = Path(source), Path(out)
    if not source.is_file():
        raise DataError(f"{source}: there is no such file")
    if out.exists() and os.path.samefile(source, out):
        raise DataError(f"{out} is the log itself; give the output another name")
    prompt_of(dataset, "")
    schema = _schema()
    report = ConversionReport()

    def tell_bad(line: int, why: Exception) -> None:
        if strict:
            raise DataError(f"{source}, line {line}: {why}")
        report.num_bad_rows += 1
        tell(f"{source.name}, line {line}: {why}; skipped")

    # a database without a name is a temporary file
    with closing(sqlite3.connect("")) as index, source.open("rb") as file:
        _note_rounds(file, index, report, tell_bad, dataset if recheck else None)
        conversations = _conversations(file, index, report, dataset)
        try:
            write_parquet(out, schema, conversations)
        except DataError:
            raise DataError(f"{source} gives no conversation; {'; '.join(report_lines(report))}") from None
    return report


def report_lines(report: ConversionReport) -> list[str]:
    """The counts as lines of text.

    >>> report_lines(ConversionReport(Counter({"right at once": 374, "one feedback": 41, "two feedbacks": 13})))
    ['428 conversations = 374 right at once + 41 one feedback + 13 two feedbacks']
    """
    counts = report.conversations
    lines = [f"{counts.total()} conversations = {' + '.join(f'{counts[kind]} {kind}' for kind in KINDS)}"]
    if report.skipped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in report.skipped.most_common())
        lines.append(f"{report.skipped.total()} problems skipped: {reasons}")
    if report.num_bad_rows:
        lines.append(f"{report.num_bad_rows} bad rows skipped")
    if report.num_later_rounds:
        lines.append(f"{report.num_later_rounds} rows of later rounds not used")
    return lines


# -- the first reading ---------------------------------------------------------------------------------------------


def _note_rounds(
    file: BinaryIO,
    index: sqlite3.Connection,
    report: ConversionReport,
    tell_bad: Callable[[int, Exception], None],
    checked_as: str | None,
) -> None:
    index.execute("CREATE TABLE problems (number INTEGER PRIMARY KEY, id TEXT UNIQUE)")
    index.execute(
        "CREATE TABLE rounds (problem, iteration, offset, is_right, has_response, has_feedback, line, "
        "PRIMARY KEY (problem, iteration)) WITHOUT ROWID"
    )
    end = 0
    for number, line in enumerate(file, start=1):
        offset, end = end, end + len(line)
        if not line.strip():
            continue
        try:
            record = read_record(line)
            if record.iteration >= len(KINDS):
                report.num_later_rounds += 1
                continue
            if checked_as is not None:
                record = rechecked(record, checked_as)
            _note_round(index, record, offset, number)
        except RecordError as why:
            tell_bad(number, why)


def _note_round(index: sqlite3.Connection, record: Record, offset: int, number: int) -> None:
    index.execute("INSERT OR IGNORE INTO problems (id) VALUES (?)", (record.problem_id,))
    (problem,) = index.execute("SELECT number FROM problems WHERE id = ?", (record.problem_id,)).fetchone()
    place = _Round(
        problem, record.iteration, offset, record.is_right, bool(record.response.strip()), bool(record.feedback)
    )
    noted = index.execute("INSERT OR IGNORE INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", (*place, number))
    if not noted.rowcount:
        (line,) = index.execute("SELECT line FROM rounds WHERE problem = ? AND iteration = ?", place[:2]).fetchone()
        raise RecordError(f"round {record.iteration} of {record.problem_id!r} is already in line {line}")


# -- the second reading --------------------------------------------------------------------------------------------


def _conversations(
    file: BinaryIO, index: sqlite3.Connection, report: ConversionReport, dataset: str
) -> Iterator[dict[str, Any]]:
    tools = [DEFINITION.json_schema()]
    found = index.execute(f"SELECT {', '.join(_Round._fields)} FROM rounds ORDER BY problem, iteration")
    for _, group in groupby(map(_Round._make, found), key=lambda each: each.problem):
        rounds = list(group)
        why_not = _why_not(rounds)
        if why_not is not None:
            report.skipped[why_not] += 1
            continue
        report.conversations[KINDS[len(rounds) - 1]] += 1
        records = []
        for each in rounds:
            file.seek(each.offset)
            records.append(read_record(file.readline()))
        yield {"messages": _messages(records, dataset), "tools": tools}


def _why_not(rounds: Sequence[_Round]) -> str | None:
    """Why a problem's rounds do not form a conversation; None if they do."""
    if not any(each.is_right for each in rounds):
        return _NEVER_RIGHT[max(each.iteration for each in rounds)]
    if [each.iteration for each in rounds] != list(range(len(rounds))):
        return "a round is missing"
    if any(each.is_right for each in rounds[:-1]):
        return "went on after being right"
    if not all(each.has_feedback for each in rounds[:-1]):
        return "without feedback"
    if not all(each.has_response for each in rounds):
        return "an answer is empty"
    return None


def _messages(records: Sequence[Record], dataset: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": prompt_of(dataset, records[0].question)},
    ]
    for record in records[:-1]:
        arguments = {"current_answer": record.response, "reasoning": ""}
        call = {"type": "function", "function": {"name": TOOL_NAME, "arguments": arguments}}
        messages.append({"role": "assistant", "content": record.response, "tool_calls": [call]})
        messages.append({"role": "tool", "content": wrong_answer_result(record.feedback)})
    return [*messages, {"role": "assistant", "content": records[-1].response}]


def _schema() -> pa.Schema:
    pa = pyarrow()
    text = pa.string()
    arguments = pa.struct([(parameter.name, text) for parameter in DEFINITION.parameters])
    call = pa.struct([("type", text), ("function", pa.struct([("name", text), ("arguments", arguments)]))])
    message = pa.struct([("role", text), ("content", text), ("tool_calls", pa.list_(call))])
    return pa.schema([("messages", pa.list_(message)), ("tools", pa.infer_type([[DEFINITION.json_schema()]]))])
