"""Demonstrations for supervised steps: conversations or records, from a list, a file, or a function of the task."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from midthought.config import SupervisedSection
from midthought.data.rows import Row, plain, rows_of
from midthought.data.tasks import text_of, with_system
from midthought.errors import DataError, MidthoughtError, SettingsError, near_names
from midthought.rollout.demonstration import demonstration
from midthought.rollout.openai_messages import calls_of, check_message, first_answer, in_one_form
from midthought.rollout.selection import ShuffledTasks, TaskStream
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message
from midthought.tools.arguments import ArgumentsError
from midthought.tools.registry import ToolRegistry
from midthought.tools.schemas import allowed_types
from midthought.trainer.sources import PromptBuilder
from midthought.types import Task, Trajectory

_log = logging.getLogger(__name__)

MAX_SAMPLES = 200
"""Number of demonstrations that the tokenizer of a new model is trained on."""


class StepDemonstrations(ABC):
    """Demonstrations of each supervised step, which depend only on the step."""

    @abstractmethod
    def of_step(self, step: int) -> Sequence[Trajectory]:
        """Returns the demonstrations of a step, from 0."""


class WrittenDemonstrations(StepDemonstrations):
    """Writes the demonstrations of each step anew, about `batch_tokens` tokens in total; they depend only on the seed and the
    step."""

    seed: int
    settings: SupervisedSection

    @abstractmethod
    def write(self, draw: random.Random) -> Trajectory:
        """Returns one demonstration; all randomness comes from `draw`."""

    def of_step(self, step: int) -> list[Trajectory]:
        draw, written = random.Random(f"demonstrations-{self.seed}-{step}"), list[Trajectory]()
        while sum(len(each.token_ids) for each in written) < self.settings.batch_tokens:
            written.append(self.write(draw))
        return written


class ShuffledDemonstrations(StepDemonstrations):
    """Gives each step demonstrations of about `batch_tokens` tokens in total. Their random choice depends only on `key` and the
    step."""

    def __init__(self, demonstrations: Sequence[Trajectory] | LazyDemonstrations, batch_tokens: int, key: str) -> None:
        self._demonstrations, self._batch_tokens, self._key = demonstrations, batch_tokens, key

    def of_step(self, step: int) -> list[Trajectory]:
        draw, chosen, num_tokens = random.Random(f"{self._key}-{step}"), [], 0
        while True:
            for number in draw.sample(range(len(self._demonstrations)), len(self._demonstrations)):
                chosen.append(self._demonstrations[number])
                num_tokens += len(chosen[-1].token_ids)
                if num_tokens >= self._batch_tokens:
                    return chosen


class LazyDemonstrations:
    """What a function gives for tasks. It is called once for each task, when the task is first drawn."""

    def __init__(self, tasks: Sequence[Task], read: Callable[[Task], Trajectory]) -> None:
        self._num_tasks = len(tasks)
        self._read = functools.cache(lambda number: read(tasks[number]))

    def __len__(self) -> int:
        return self._num_tasks

    def __getitem__(self, number: int) -> Trajectory:
        return self._read(number)


class DemonstrationReader:
    """Converts what a user gives to records with the prompts, the call format and the masks of the episodes."""

    def __init__(self, prompts: PromptBuilder, renderer: Renderer, max_length: int) -> None:
        self._prompts, self._renderer, self._max_length = prompts, renderer, max_length
        self._has_warned = False
        self._unread: dict[str, None] = {}

    def read(self, given: Any, stream: TaskStream) -> Sequence[Trajectory] | LazyDemonstrations:
        """Returns the records of a list, a file, or a function of the task. Raises `DataError`, with the row, for a demonstration
        that cannot be read, and `SettingsError` if a function is given and there is no data set."""
        if callable(given):
            return LazyDemonstrations(tasks_of(stream), lambda task: self._of_task(task, given(task)))
        found = []
        for row in _rows(given):
            with _named(f"{row.unit} {row.number}"):
                found.append(self._of_row(row))
        if not found:
            raise DataError("demonstrations: there is none; give at least one conversation")
        if self._unread:
            _log.warning("columns of the demonstrations that are not used: %s", ", ".join(self._unread))
        return found

    def _of_row(self, row: Row) -> Trajectory:
        if isinstance(row.value, Trajectory):
            return self._checked(row.value)
        messages = _messages(row.value)
        if isinstance(row.value, Mapping):
            used = {"system", *_form_of(row.value)}
            self._unread |= dict.fromkeys(str(column) for column in row.value if column not in used)
        first = first_answer(messages)
        *before, question = messages[:first]
        if question["role"] != "user":
            raise DataError(
                f"before the first answer is a message of the role {question['role']!r}; ask a question there"
            )
        if before and before[0]["role"] == "system":
            (*system, _) = self._prompts.messages(Task(task_id="", prompt="?", answer=""))
            if before[0]["content"] in (self._prompts.system_prompt, *(message["content"] for message in system)):
                before = before[1:]  # the prompt has it anyway
        task = Task(task_id=f"{row.unit} {row.number}", prompt=question["content"], answer="", before=tuple(before))
        return self._record(task, messages[first:])

    def _of_task(self, task: Task, given: Any) -> Trajectory:
        """Returns the record of what a function gave for a task: answers with results, after the task's own prompt or without."""
        with _named(f"task {task.task_id!r}"):
            if isinstance(given, Trajectory):
                return self._checked(given)
            messages = _messages(_as_answer(given))
            roles = [message.get("role") for message in messages]
            first = roles.index("assistant") if "assistant" in roles else 0
            if first and messages[first - 1].get("content") != task.prompt:
                raise DataError(
                    f"its question is {messages[first - 1].get('content')!r:.80}, and the task's is {task.prompt!r:.80}; "
                    "return the answers and results only, or begin with the task's prompt"
                )
            return self._record(task, messages[first:])

    def _record(self, task: Task, answers: Sequence[Message]) -> Trajectory:
        first = self._prompts.messages(task)
        answers = [_without_unused_nulls(message, self._prompts.registry) for message in answers]
        record = demonstration(task, [*first, *answers], self._renderer, self._prompts.call_format)
        for message in answers:
            for name, arguments in calls_of(message):
                self._check_call(task, name, arguments)
        return self._checked(record)

    def _check_call(self, task: Task, name: str, arguments: Mapping[str, Any]) -> None:
        """Raises `DataError` for an unknown tool. Warns once about arguments that the tool would refuse: they may be intended, if
        the demonstration shows how to continue after an error."""
        registry = self._prompts.registry
        known = {definition.name for definition in registry.definitions()}
        if name not in known:
            raise DataError(f"it calls {name!r}, which is no tool of the trainer. {near_names(name, known)}")
        try:
            registry.arguments(name, arguments)
        except ArgumentsError as error:
            if not self._has_warned:
                _log.warning("demonstrations, %s: the call of %r would fail (%s)", task.task_id, name, error)
            self._has_warned = True

    def _checked(self, record: Trajectory) -> Trajectory:
        record.require_tokens()
        num_tokens = max(len(segment.token_ids) for segment in record.segments)
        if num_tokens > self._max_length:
            raise DataError(f"it has {num_tokens} tokens, and the model has {self._max_length} positions; shorten it")
        if not any(record.loss_mask):
            raise DataError("no token is trained on; give an answer without weight 0 (in a record: add_demonstrated)")
        largest, size = max(max(segment.token_ids) for segment in record.segments), len(self._renderer.tokenizer)
        if largest >= size:
            raise DataError(
                f"it has the token {largest}, and the tokenizer has {size}; write it with the model's tokenizer"
            )
        return record


def demonstrated_words(given: Any, stream: TaskStream, prompts: PromptBuilder) -> list[str]:
    """Returns the texts of some demonstrations, calls included, to train the tokenizer of a model that is created here."""
    if given is None:
        return []
    values = map(given, tasks_of(stream)) if callable(given) else (row.value for row in _rows(given))
    texts = []
    for value, _ in zip(values, range(MAX_SAMPLES), strict=False):
        value = _as_answer(value) if callable(given) else value
        for number, message in enumerate(() if isinstance(value, Trajectory) else _messages(value)):
            check_message(f"demonstrations: message {number}", message)
            words = [message.get("reasoning_content"), message.get("content")]
            words += [prompts.call_format.render_call(*call) for call in calls_of(message)]
            texts.append("\n".join(filter(None, words)))
    return texts


def tasks_of(stream: TaskStream) -> Sequence[Task]:
    """Returns the tasks of a data set. Raises `SettingsError` for an environment, which has no list of tasks."""
    if not isinstance(stream, ShuffledTasks):
        raise SettingsError(
            "demonstrations: a function needs the tasks of a data set; for an environment give a list of conversations"
        )
    return stream.tasks


def _rows(given: Any) -> Iterator[Row]:
    for row in rows_of(given):
        if row.problem is not None:
            raise DataError(f"demonstrations, {row.where}: {row.problem}")
        yield row


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    """Raises what is wrong in the block as `DataError` with the place."""
    try:
        yield
    except MidthoughtError as error:
        raise DataError(f"demonstrations, {where}: {error}") from None


def _without_unused_nulls(message: Message, registry: ToolRegistry) -> Message:
    """Returns the message without arguments of null that the tool does not take: a `datasets.Dataset` gives each call the keys of
    all calls."""
    if not message.get("tool_calls"):
        return message
    shown = (each.json_schema()["function"] for each in registry.definitions())
    types = {each["name"]: each["parameters"].get("properties", {}) for each in shown}
    calls = []
    for call, (name, arguments) in zip(message["tool_calls"], calls_of(message), strict=True):
        of_tool = types.get(name, {})
        takes_null = {key for key in arguments if "null" in allowed_types(of_tool.get(key))}
        used = {key: value for key, value in arguments.items() if value is not None or key in takes_null}
        calls.append({**call, "function": {**call["function"], "arguments": used}})
    return {**message, "tool_calls": calls}


_FORMS = (("messages",), ("prompt", "completion"), ("conversations",))


def _form_of(row: Mapping[str, Any]) -> Sequence[str]:
    """Returns the columns of a conversation besides `system`; empty if the row has none."""
    return next((form for form in _FORMS if row.keys() >= set(form)), ())


def _messages(given: Any) -> Sequence[Message]:
    """Returns the messages of a row: a list, or its columns `messages`, `conversations`, or `prompt` and `completion` (TRL), and
    `system`. Raises `DataError` for anything else."""
    value = given
    if isinstance(given, Mapping):
        if not (form := _form_of(given)):
            hint = " It is a single message: give a list of conversations." if "role" in given else ""
            columns = ", ".join(map(str, given)) or "nothing"
            raise DataError(f"it has no column 'messages'; it has: {columns}.{hint}")
        value, *answered = (plain(given[column]) for column in form)
        if answered:
            value = [*_as_messages("user", value), *_as_messages("assistant", answered[0])]
    value = plain(value)
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"it is {value!r:.80}; give a list of messages, a mapping with 'messages', or a Trajectory")
    messages = in_one_form([_without_nulls(message) if isinstance(message, Mapping) else message for message in value])
    return with_system(text_of(given, "system") or "", messages) if isinstance(given, Mapping) else messages


def _as_answer(given: Any) -> Any:
    """Returns what a function gave for a task; a text as the messages of the answer."""
    return [{"role": "assistant", "content": given}] if isinstance(given, str) else given


def _as_messages(role: str, said: Any) -> Any:
    return said if isinstance(said, list | tuple) else [{"role": role, "content": said}]


def _without_nulls(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: said for name, said in message.items() if said is not None}
