"""Tasks from data sets of common formats: finds the columns of the question and the ground truth. Does not depend on
the tokenizer.

`load_tasks` is the public function; `rows` reads the files.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from midthought.data.final_answers import is_number, last_boxed, last_number, split_at_mark
from midthought.data.problem_readers import ASKED, as_text
from midthought.data.rows import Row, RowError, plain, rows_of
from midthought.errors import DataError, near_names
from midthought.types import Task

PROMPT_KEYS = ("prompt", "question", "problem", "instruction", "query", "messages", "input")
"""Columns of the question, in order of preference, ignoring case."""
ANSWER_KEYS = (
    *("answer", "ground_truth", "reward_model.ground_truth", "target", "solution"),
    *("final_answer", "expected_answer", "answers", "answerKey", "correct_answer", "gold", "reference", "label"),
    *("golden_answers", "gold_answer", "reference_answer", "expected_output", "expected", "correct answer", "correct"),
    "output",
)
"""Columns of the ground truth; a dot refers to a nested column (verl's rows)."""
BESIDE = {"question": ("context",), "instruction": ("context", "input")}
"""Columns whose texts belong to the prompt, by the column of the question: SQuAD, Alpaca, Dolly."""
DATASET_LABEL = "dataset"
"""Label with the name of a task's data set, which selects the rules for its answers (`env.answers`)."""
ID_KEYS = ("task_id", "id")
"""Columns of the task's id; rows without one are named by their position (`questions:7`)."""
_OF_RECORDS = ("aliases", "before", "evidence", "data_source")
_OPTIONS = ("choices", "options")
_MESSAGES = re.compile(r"""\[\s*+\{(?=.*["']role["']\s*+:)(?=.*["']content["']\s*+:).*\}\s*+\]""", re.DOTALL)
_WORDS = re.compile(r"[^\W\d_]|\n")
_OTHERS = (*_OF_RECORDS, "context", "system", "labels")

_log = logging.getLogger(__name__)


class LoadedTasks(list[Task]):
    """A list of tasks, and the reasons for skipped rows."""

    def __init__(self, tasks: Iterable[Task], skipped: Sequence[str]) -> None:
        super().__init__(tasks)
        self.skipped = tuple(skipped)
        """One sentence for each skipped row (`strict=False`)."""


def load_tasks(
    source: Any,
    *,
    label_keys: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    needs_answer: bool = True,
    limit: int | None = None,
    strict: bool = True,
) -> LoadedTasks:
    """Loads tasks from a path (.jsonl, .json, .csv, .tsv, .parquet), a `datasets` object, or an iterable of mappings, strings and
    Tasks.

    A string is a prompt without ground truth (`""`); so is a row without one if `needs_answer` is False. The columns are the
    first of `PROMPT_KEYS`, `ANSWER_KEYS` and `ID_KEYS` that `columns` or the first readable row has. The prompt is a string or
    messages `[{"role": "user", "content": …}]`, the last of them the user's. The answer is a string, a number, a list (the
    first is the truth, the others are aliases), a mapping with `value` and optional `aliases` (TriviaQA), or with `text`
    (SQuAD). A text whose last line is `#### 42`, without words, is a worked solution in GSM8K's form: the answer is `42`; that
    of `#### 1,250` is `1250` with the alias `1,250`. Of a text with `\\boxed{42}` (MATH), the answer is the content of the last
    box, judged as mathematics if it is no number.

    The texts of `context` and `input` beside an `instruction` (Dolly, Alpaca), and of `context` beside a `question` (SQuAD),
    are part of the prompt. A text in `system` becomes the first message. `columns` maps your names to these:
    `{"problem_text": "question", "meta.truth": "answer"}`; a dot refers to a nested column. Columns that are not read are named
    in one line of the log.

    Columns `aliases`, `before`, `evidence` and `labels` of our own records are kept. `label_keys` adds further columns to the
    task's labels, for evaluation and your own rewards. The built-in rewards read one of them: `dataset`, also set by verl's
    `data_source` if it is a data set of `load_problems`, selects the rules for answers.

    Reads at most `limit` tasks. Raises DataError for an unreadable source or row, for two rows with the same id, for an unknown
    name in `columns`, and if there is no task. With `strict=False` such rows are skipped, counted in the log and kept in
    `.skipped`.

    Examples:
        >>> load_tasks([{"question": "1 + 1?", "answer": 2}])[0].answer
        '2'
    """
    reader = _TaskReader(label_keys, columns or {}, needs_answer)
    tasks = read_tasks(rows_of(source), reader.read, limit=limit, strict=strict)
    use = "load_tasks(…, columns={…}) maps them to columns that are, label_keys=[…] makes labels of them"
    warn_of_unread(reader.unread, use)
    return tasks


def warn_of_unread(columns: Iterable[str], remedy: str) -> None:
    """Logs the columns that no task has, if there are any."""
    if unread := ", ".join(map(str, columns)):
        _log.warning("columns of the data set that are not used: %s; %s", unread, remedy)


def read_tasks(
    rows: Iterable[Row], read: Callable[[Row], Task], *, limit: int | None, strict: bool, seed: int | None = None
) -> LoadedTasks:
    """Converts rows to tasks with `read`, which raises RowError for a row that is not a task. With a seed, `limit` tasks are
    sampled from all, in their order; without one, the first are returned. Other arguments and errors: `load_tasks`."""
    if limit is not None and limit < 1:
        raise DataError(f"limit={limit}; it must be at least 1")
    skipped: list[str] = []
    where_of: dict[str, str] = {}

    def tasks() -> Iterator[Task]:
        for row in rows:
            try:
                task = _read(row, read, where_of)
            except RowError as error:
                if strict:
                    raise DataError(f"{row.where}: {error}") from None
                skipped.append(f"{row.where}: {error}")
                continue
            where_of[task.task_id] = row.where
            yield task

    found = list(itertools.islice(tasks(), limit if seed is None else None))
    if not found:
        raise DataError(f"no task was found in the data set{f'; {skipped[0]}' if skipped else ': it is empty'}")
    if skipped:
        _log.warning("%d rows were skipped, %d tasks remain; first: %s", len(skipped), len(found), skipped[0])
    if limit is not None and limit < len(found):
        found = [found[place] for place in sorted(random.Random(seed).sample(range(len(found)), limit))]
    return LoadedTasks(found, skipped)


def _read(row: Row, read: Callable[[Row], Task], where_of: Mapping[str, str]) -> Task:
    if row.problem is not None:
        raise RowError(row.problem)
    task = read(row)
    if task.task_id in where_of:
        remedy = "give the rows different ids, or map another column: columns={'…': 'id'}"
        raise RowError(f"the id {task.task_id!r} was already used at {where_of[task.task_id]}; {remedy}")
    return task


class _Labels(dict[str, Any]):
    """A task's labels; says how a column becomes one."""

    def __missing__(self, name: str) -> Any:
        remedy = f"columns of a data set become labels if they are named: dataset=load_tasks(…, label_keys=[{name!r}])"
        raise KeyError(f"the task has no label {name!r}; {remedy}")


@dataclass
class _TaskReader:
    """Converts the rows of one source to tasks; remembers the columns. The first fields are arguments of `load_tasks`."""

    label_keys: Sequence[str]
    columns: Mapping[str, str]
    needs_answer: bool
    prompt_key: str | None = field(init=False)
    answer_key: str | None = field(init=False)
    id_key: str | None = field(init=False)
    unread: dict[str, None] = field(default_factory=dict)
    """Columns that were not used."""

    def __post_init__(self) -> None:
        known = {name for name in (*PROMPT_KEYS, *ANSWER_KEYS, *ID_KEYS, *_OTHERS) if "." not in name}
        for name, number in Counter(self.columns.values()).items():
            if name not in known:
                raise DataError(f"columns: {name!r} is no name that is read. {near_names(name, known)}")
            if number > 1:
                raise DataError(f"columns={dict(self.columns)}: only one column can be {name!r}")
        mapped = dict.fromkeys(self.columns.values())
        self.prompt_key = _first_of(PROMPT_KEYS[:-1], mapped)
        self.answer_key = _first_of(ANSWER_KEYS, mapped)
        self.id_key = _first_of(ID_KEYS, mapped)

    def read(self, row: Row) -> Task:
        if isinstance(row.value, Task):
            for what in ("prompt", "answer"):
                if isinstance(text := getattr(row.value, what), str):
                    _unicode(text, what)
            return row.value
        if isinstance(row.value, str):
            return Task(task_id=_place(row), prompt=_filled(row.value, "the prompt"), answer="")
        if isinstance(row.value, Mapping):
            return self._from_mapping(row, row.value)
        raise RowError(f"it is of type {type(row.value).__name__}; a row is a mapping, a text or a Task")

    def _from_mapping(self, row: Row, given: Mapping[str, Any]) -> Task:
        named = {name: _at(given, column) for column, name in self.columns.items()}
        replaced = {key for key in given if str(key).casefold() in {name.casefold() for name in named}}
        value = named | {key: given[key] for key in given if key not in {*self.columns, *replaced}}
        prompt_key, answer_key, id_key = keys = self._find_keys(value)
        said = plain(_at(value, answer_key)) if answer_key else None
        answer, aliases = ("", ()) if said is None and not self.needs_answer else _answer(said)
        source, labels = value.get("data_source"), value.get("labels")
        own_labels = dict(labels) if isinstance(labels, Mapping) else {}
        before, question = _conversation(_at(value, prompt_key))
        names = ("system", *BESIDE.get(prompt_key.casefold(), ()))
        beside = {name: text for name in names if (text := text_of(value, name)) is not None}
        prompt = "\n\n".join(filter(str.strip, (beside.get("context", ""), question, beside.get("input", ""))))
        boxed = last_boxed(said) if isinstance(said, str) else None
        chosen = {DATASET_LABEL: "math"} if boxed and not is_number(boxed) else {}
        if isinstance(source, str) and source in ASKED:
            chosen = {DATASET_LABEL: source}
        read = [*filter(None, keys), *self.label_keys, *self.columns, *beside, *_OF_RECORDS]
        read += ["labels"] * isinstance(labels, Mapping)
        tops = {(key if key in value else key.partition(".")[0]).casefold() for key in read}
        left_out = [*(key for key in value if str(key).casefold() not in tops), *(replaced - self.columns.keys())]
        self.unread |= dict.fromkeys(map(str, left_out))
        for name in left_out:
            if str(name).casefold() in _OPTIONS:
                _require_shown(str(name), plain(value.get(name)), prompt, answer)
        return Task(
            task_id=_place(row) if id_key is None else _text(_at(value, id_key), id_key),
            prompt=prompt,
            answer=answer,
            aliases=(*aliases, *_texts(value, "aliases")),
            labels=_Labels(chosen | own_labels | {key: plain(_at(value, key)) for key in self.label_keys}),
            evidence=_texts(value, "evidence"),
            before=tuple(with_system(beside.get("system", ""), before or _before(value, question))),
        )

    def _find_keys(self, value: Mapping[str, Any]) -> tuple[str, str | None, str | None]:
        """Returns the columns of the prompt, the answer and the id: of later rows, the same."""
        prompt = self.prompt_key or _first_of(PROMPT_KEYS, value)
        answer = self.answer_key or _first_of(ANSWER_KEYS, value)
        if prompt is None or (answer is None and self.needs_answer):
            what, name = ("question", "question") if prompt is None else ("ground truth", "answer")
            otherwise = "" if prompt is None else ", or of needs_answer=False if the reward needs none"
            raise RowError(
                f"no column is known for the {what}; map one of {', '.join(map(str, value)) or 'none'}: a trainer takes the "
                f"tasks of load_tasks(…, columns={{'…': {name!r}}}){otherwise}"
            )
        self.prompt_key, self.answer_key, self.id_key = prompt, answer, self.id_key or _first_of(ID_KEYS, value)
        return prompt, answer, self.id_key


def _require_shown(name: str, options: Any, prompt: str, answer: str) -> None:
    """Raises RowError if the prompt of a question with options (a list, ARC's mapping, or one of letters) does not show them, or
    if the answer is the place of one in a list, from 0 or 1, and the prompt does not have this number."""
    listed = plain(options.get("text", [*options.values()])) if isinstance(options, Mapping) else options
    listed = listed if isinstance(listed, list | tuple) else ()
    texts = [str(as_text(each) or each) for each in listed if each is not None]
    if any(text not in prompt for text in texts):
        raise RowError(
            f"the question does not show the options in {name!r}: write them into it, or load the rows with "
            f"load_problems('mmlu', rows); if they are no options, name them: load_tasks(…, label_keys=[{name!r}])"
        )
    is_place = not isinstance(options, Mapping) and answer in {*map(str, range(len(texts) + 1))} - {*texts}
    if texts and is_place and not re.search(rf"\b{answer}\b", prompt):
        remedy = f"give its letter or text, or name them: load_tasks(…, label_keys=[{name!r}])"
        raise RowError(f"its answer {answer!r} is the place of an option in {name!r}: {remedy}")


def with_system(text: str, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Returns the messages after a system message with this text, unless it is blank or they begin with it. Raises RowError if
    they begin with another."""
    first = messages[0] if messages and _has(messages[0], "role") and messages[0]["role"] == "system" else None
    if not text.strip() or (first and first.get("content") == text):
        return messages
    if first:
        raise RowError(f"the column system is {text!r:.60}, and the messages begin with another system message")
    return [{"role": "system", "content": text}, *messages]


def text_of(value: Mapping[str, Any], name: str) -> str | None:
    """Returns the text of a column, empty if it is null; None if there is no such column, or no text in it."""
    column = _first_of((name,), value)
    found = None if column is None else value[column]
    return _unicode(found, name) if isinstance(found, str) else "" if column and found is None else None


def _first_of(candidates: Sequence[str], value: Mapping[str, Any]) -> str | None:
    columns = {str(column).casefold(): str(column) for column in reversed(list(value))}
    for candidate in candidates:
        first, dot, rest = candidate.casefold().partition(".")
        if first in columns and (not dot or _has(value[columns[first]], rest)):
            return columns[first] + dot + rest
    return None


def _has(value: Any, key: str) -> bool:
    return isinstance(value, Mapping) and key in value


def _at(value: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a column; a dot refers to a nested one, unless a column has the whole name."""
    if key in value:
        return value[key]
    first, dot, rest = key.partition(".")
    if dot and isinstance(value.get(first), Mapping):
        return _at(value[first], rest)
    raise RowError(f"it has no {key!r}. {near_names(key, map(str, value))}")


def _place(row: Row) -> str:
    return f"{row.source.rpartition('.')[0] or 'row'}:{row.number}"


def _unicode(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowError(f"{what} is not Unicode text: a lone surrogate at character {error.start}; remove it") from None
    return text


def _conversation(value: Any) -> tuple[tuple[Mapping[str, str], ...], str]:
    """Returns the earlier messages, and the user's prompt."""
    value = plain(value)
    if isinstance(value, str):
        if _MESSAGES.fullmatch(value.strip()):
            raise RowError(f"the prompt {value!r:.60} is a list written as a text; give it in JSON lines or Parquet")
        return (), _filled(value, "the prompt")
    if not isinstance(value, Sequence) or not value or not all(_has(message, "role") for message in value):
        raise RowError(f"the prompt is {value!r:.60}; it must be a text or a list of messages (role, content)")
    roles = [f"{message['role']}{' with tool_calls' * bool(plain(message.get('tool_calls')))}" for message in value]
    if roles[-1] != "user" or not {*roles[:1]} <= {"system", "user"} or not {*roles[1:]} <= {"user", "assistant"}:
        raise RowError(
            f"the prompt has messages of the roles {', '.join(roles)}; it may start with a system message, continues with "
            "messages of user and assistant, and ends with a user message"
        )
    *before, last = ({"role": str(message["role"]), "content": _content(message.get("content"))} for message in value)
    return tuple(before), _filled(last["content"], "the prompt")


def _content(value: Any) -> str:
    """Returns a message's text; OpenAI's form, a list of text parts, is joined."""
    value = plain(value)
    if isinstance(value, Sequence) and not isinstance(value, str) and all(_has(part, "text") for part in value):
        value = "".join(str(part["text"]) for part in value)
    if not isinstance(value, str):
        raise RowError(f"a message's content is {value!r:.60}; it must be a text")
    return value


def _before(value: Mapping[str, Any], prompt: str) -> tuple[Mapping[str, str], ...]:
    """Returns the column `before` of our own records."""
    found = plain(value.get("before"))
    if found is None:
        return ()
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise RowError(f"before is {found!r:.60}; it must be a list of messages (role, content)")
    return _conversation([*found, {"role": "user", "content": prompt}])[0]


def _answer(value: Any) -> tuple[str, tuple[str, ...]]:
    """Returns the ground truth and its aliases."""
    if _has(value, "value"):
        return _text(value["value"], "answer"), _texts(value, "aliases")
    if _has(value, "text"):
        return _answer(plain(value["text"]))
    if isinstance(value, bool):
        return str(value), ("yes" if value else "no",)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if not value:
            raise RowError("the list of answers is empty")
        first, *others = (_text(each, "answer") for each in value)
        return first, tuple(others)
    text = _text(value, "answer")
    if boxed := last_boxed(text):
        return boxed.replace(",", "") if is_number(boxed) else boxed, ()
    if "\\boxed" in text:
        raise RowError(f"{text[-60:]!r} has a \\boxed without an answer in a closed pair of braces; write \\boxed{{…}}")
    solution, written = split_at_mark(text)
    is_alone = last_number(written) is not None and not _WORDS.search(written)
    if solution is None or solution.rstrip(" \t")[-1:] not in ("", "\n") or not is_alone:
        return text, ()
    number = written.replace(",", "") if is_number(written) else written
    return number, () if written == number else (written,)


def _text(value: Any, what: str) -> str:
    if isinstance(value, int) or (isinstance(value, float | Decimal) and math.isfinite(value)):
        return str(value)
    if not isinstance(value, str):
        key = next(iter(value), None) if isinstance(value, Mapping) else None
        column = "answer" if what == "answer" else "id"
        remedy = f", or one key of it: load_tasks(…, columns={{'COLUMN.{key}': {column!r}}})" if key else ""
        raise RowError(f"{what} is {value!r:.60}; it must be a text or a number{remedy}")
    return _filled(value, what)


def _filled(text: str, what: str) -> str:
    if not text.strip():
        raise RowError(f"{what} is empty")
    return _unicode(text, what)


def _texts(value: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = plain(value.get(key))
    if found is None:
        return ()
    if isinstance(found, str) or not isinstance(found, Sequence) or not all(isinstance(each, str) for each in found):
        raise RowError(f"{key} is {found!r:.60}; it must be a list of texts")
    return tuple(found)
