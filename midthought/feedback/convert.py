"""Converts published feedback logs (one record per problem and round) to tool-calling conversations in Parquet, for SFT.

Reads the log line by line and keeps the used fields of rounds 0 to 2 in memory.
"""

from __future__ import annotations

import codecs
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, StrictBool, StrictInt, ValidationError, field_validator

from midthought.config.references import optional
from midthought.data.problem_readers import prompt_of
from midthought.env.answers import is_right
from midthought.errors import DataError
from midthought.feedback.masking import mask_answer
from midthought.feedback.settings import (
    DEFINITION,
    SYSTEM_PROMPT,
    TOOL_NAME,
    without_control_tokens,
    wrong_answer_result,
)
from midthought.files.regular import atomic_path
from midthought.types import Task

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
    num_broken_up: int = 0
    """Conversations with text that was written like a control token."""


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
    that was right in round 0, 1 or 2 gives one conversation, in the order of first appearance. As in an episode, its answer is
    masked in the feedback.

    Trainers encode whole conversations, so text like `<|im_end|>` or `</think>` would become a control token: it is written
    with a blank (`< |im_end|>`) and counted.

    Args:
        source: the log.
        out: written atomically.
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

    problems: dict[str, dict[int, Record]] = {}
    with source.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                if line.strip():
                    _store(problems, read_record(line, number), report, dataset if recheck else None)
            except RecordError as why:
                if strict:
                    raise DataError(f"{source}, line {number}: {why}") from None
                report.num_bad_rows += 1
                tell(f"{source.name}, line {number}: {why}; skipped")
    try:
        write_parquet(out, schema, _conversations(problems, report, dataset))
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
    others = {
        "bad rows skipped": report.num_bad_rows,
        "rows of later rounds not used": report.num_later_rounds,
        "conversations have control tokens as text; a blank was added in each": report.num_broken_up,
    }
    return lines + [f"{count} {what}" for what, count in others.items() if count]


# -- records -------------------------------------------------------------------------------------------------------


class RecordError(ValueError):
    """A record cannot be used; the message says why."""


class Record(BaseModel, frozen=True):
    """The fields of a record that are used, of the types in published logs."""

    line: int
    iteration: Annotated[StrictInt, Field(ge=0)]
    is_correct: StrictBool
    is_right: bool
    """`is_correct`, or what the check found."""
    full_response: Annotated[list[str], Field(min_length=1, max_length=1)]
    feedback: str
    normalized_answer: Any
    answer: Any
    unique_id: StrictInt | str | None
    question_id: StrictInt | str | None
    original_question: str | None
    problem: str | None
    Problem: str | None
    question: str | None

    @field_validator("feedback", mode="before")
    @classmethod
    def _text_of_feedback(cls, value: Any) -> Any:
        """A log has a text, a list of a text and its log-probability, or null."""
        said = value[0] if isinstance(value, list) and value else value
        return "" if said is None else said.strip() if isinstance(said, str) else said

    @property
    def task(self) -> Task:
        """The problem with its answer, empty if that is no text or number, and the aliases in TriviaQA's column `answer`."""
        named = self.answer.get("aliases") if isinstance(self.answer, Mapping) else ()
        answer = str(self.normalized_answer) if isinstance(self.normalized_answer, str | int | float) else ""
        aliases = tuple(map(str, named)) if isinstance(named, list) else ()
        return Task(task_id="", prompt=self.prompt, answer=answer, aliases=aliases)

    @property
    def problem_id(self) -> str:
        """Its id in the log; empty if it has none."""
        return _first((self.unique_id, self.question_id, self.original_question))

    @property
    def prompt(self) -> str:
        """The problem without its history, which the problem's column includes in later rounds and after a wrong answer."""
        columns = (self.problem, self.Problem, self.question) if self.iteration == 0 and self.is_correct else ()
        return _first((self.original_question, *columns))


def _first(values: Iterable[object]) -> str:
    return next((str(each) for each in values if each is not None and str(each).strip()), "")


def read_record(line: bytes, number: int) -> Record:
    """Parses line `number` of the log. Raises RecordError if a field is missing or has another type than in published logs."""
    try:
        row = json.loads(line.removeprefix(codecs.BOM_UTF8).decode())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"it is not JSON ({error})") from None
    if not isinstance(row, Mapping):
        raise RecordError(f"it is of type {type(row).__name__}, not an object")
    given = {name: row.get(name) for name in Record.model_fields}
    try:
        record = Record(**{**given, "line": number, "is_right": row.get("is_correct")})
    except ValidationError as error:
        found = error.errors()[0]
        raise RecordError(f"{found['loc'][0]} is {found['input']!r:.60}; {found['msg'].lower()}") from None
    if not record.problem_id:
        raise RecordError("it does not name its problem; it needs unique_id, question_id or original_question")
    if not record.iteration and not record.prompt:
        raise RecordError("it has no original_question")
    try:
        "".join((record.problem_id, record.prompt, *record.full_response, record.feedback)).encode()
    except UnicodeEncodeError:
        raise RecordError("it contains half of a character (a lone surrogate)") from None
    return record


def _store(
    problems: dict[str, dict[int, Record]], record: Record, report: ConversionReport, checked_as: str | None
) -> None:
    if record.iteration >= len(KINDS):
        report.num_later_rounds += 1
        return
    if checked_as is not None:
        if not (task := record.task).answer:
            raise RecordError("it has no normalized_answer to compare its answer with")
        verdict = is_right(checked_as, record.full_response[0], task.answer, task.aliases)
        record = record.model_copy(update={"is_right": verdict})
    first = problems.setdefault(record.problem_id, {}).setdefault(record.iteration, record)
    if first is not record:
        raise RecordError(f"round {record.iteration} of {record.problem_id!r} is already in line {first.line}")


# -- conversations -------------------------------------------------------------------------------------------------


def _conversations(
    problems: Mapping[str, Mapping[int, Record]], report: ConversionReport, dataset: str
) -> Iterator[dict[str, Any]]:
    tools = [DEFINITION.json_schema()]
    for of_problem in problems.values():
        rounds = [record for _, record in sorted(of_problem.items())]
        why_not = _why_not(rounds)
        if why_not is not None:
            report.skipped[why_not] += 1
            continue
        report.conversations[KINDS[len(rounds) - 1]] += 1
        texts = [(each.prompt, each.full_response[0], mask_answer(each.feedback, each.task)) for each in rounds]
        harmless = [tuple(map(without_control_tokens, each)) for each in texts]
        report.num_broken_up += harmless != texts
        yield {"messages": _messages(harmless, dataset), "tools": tools}


def _why_not(rounds: Sequence[Record]) -> str | None:
    """Why a problem's rounds do not form a conversation; None if they do."""
    if not any(each.is_right for each in rounds):
        return _NEVER_RIGHT[max(each.iteration for each in rounds)]
    if [each.iteration for each in rounds] != list(range(len(rounds))):
        return "a round is missing"
    if any(each.is_right for each in rounds[:-1]):
        return "went on after being right"
    if not all(each.feedback for each in rounds[:-1]):
        return "without feedback"
    if not all(each.full_response[0].strip() for each in rounds):
        return "an answer is empty"
    return None


def _messages(rounds: Sequence[tuple[str, ...]], dataset: str) -> list[dict[str, Any]]:
    """`rounds`: problem, response and feedback of each."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": prompt_of(dataset, rounds[0][0])},
    ]
    for _, response, feedback in rounds[:-1]:
        arguments = {"current_answer": response, "reasoning": ""}
        call = {"type": "function", "function": {"name": TOOL_NAME, "arguments": arguments}}
        messages.append({"role": "assistant", "content": response, "tool_calls": [call]})
        messages.append({"role": "tool", "content": wrong_answer_result(feedback)})
    return [*messages, {"role": "assistant", "content": rounds[-1][1]}]


def _schema() -> pa.Schema:
    pa = optional("pyarrow", "data")
    text = pa.string()
    arguments = pa.struct([(parameter.name, text) for parameter in DEFINITION.parameters])
    call = pa.struct([("type", text), ("function", pa.struct([("name", text), ("arguments", arguments)]))])
    message = pa.struct([("role", text), ("content", text), ("tool_calls", pa.list_(call))])
    return pa.schema([("messages", pa.list_(message)), ("tools", pa.infer_type([[DEFINITION.json_schema()]]))])


def write_parquet(path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes the rows atomically. Raises DataError if there is none; then an existing file stays as it was."""
    pa, parquet = optional("pyarrow", "data"), optional("pyarrow.parquet", "data")
    table = pa.Table.from_pylist(list(rows), schema)
    if not table.num_rows:
        raise DataError(f"{path}: there is nothing to write; it was left as it was")
    with atomic_path(path) as partial:
        parquet.write_table(table, partial, row_group_size=512)
