"""Turns a conversation with `tool_calls` into a demonstration: the record that an episode with the same turns would have."""

from __future__ import annotations

import json
from collections.abc import Sequence

from midthought.errors import DataError
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import Message
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.types import Task, ToolCall, ToolEvent, ToolOutcome, Trajectory


def demonstration(
    task: Task, messages: Sequence[Message], renderer: Renderer, call_format: NativeCallFormat
) -> Trajectory:
    """Returns a record in which the answers are trained on, calls and thoughts (`reasoning_content`) included.

    `messages` are OpenAI's: they begin before the first answer, and end with an answer. Ids of calls are replaced by those that
    an episode would have. Raises `DataError` if the roles have another order, `SettingsError` if the chat template does not
    write an answer as a continuation of its prompt.
    """
    said = _with_our_ids(messages, call_format)
    answers = [number for number, message in enumerate(said) if message["role"] == "assistant"]
    if not answers or answers[0] == 0 or answers[-1] != len(said) - 1:
        roles = [message["role"] for message in said]
        raise DataError(f"task {task.task_id!r}: the roles {roles} do not begin with a question and end with an answer")
    trajectory = Trajectory(task, renderer.prompt(said[: answers[0]]))
    for answer, after in zip(answers, [*answers[1:], None], strict=True):
        trajectory.add_demonstrated(renderer.answer(said[answer], said[:answer]))
        if after is not None:
            between = said[answer + 1 : after]
            if not between:
                raise DataError(f"task {task.task_id!r}: two answers follow each other (messages {answer} and {after})")
            token_ids = renderer.following(between, said[: answer + 1])
            events = _events(said[answer], between)
            if events:
                trajectory.add_results(events, token_ids)
            else:
                trajectory.add_reply(token_ids)
    return trajectory


def _with_our_ids(messages: Sequence[Message], call_format: NativeCallFormat) -> list[Message]:
    """Returns the messages with our ids, and the names of tools beside results."""
    said: list[Message] = []
    known: dict[str, tuple[str, str]] = {}
    waiting: list[tuple[str, str]] = []
    num_calls = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            waiting, renamed = [], []
            for call in calls:
                name = call["function"]["name"]
                ours = call_format.syntax.make_id(name, num_calls)
                num_calls += 1
                waiting.append((ours, name))
                known[call.get("id") or ours] = (ours, name)
                renamed.append({**call, "id": ours, "type": "function"})
            message = {**message, "content": message.get("content") or "", "tool_calls": renamed}
        elif message["role"] == "tool":
            first = waiting.pop(0) if waiting else ("", "")
            ours, name = known.get(message.get("tool_call_id") or "", first)
            message = {**message, "tool_call_id": ours, "name": name}
        said.append(message)
    return said


def _events(answer: Message, results: Sequence[Message]) -> list[ToolEvent]:
    """Returns the calls of an answer with their results."""
    text_of = {result.get("tool_call_id"): result["content"] for result in results if result["role"] == "tool"}
    events = []
    for call in answer.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        name, result = call["function"]["name"], text_of.get(call["id"], "")
        made = ToolCall(tool_name=name, parameters=arguments, success=True, result=result)
        events.append(ToolEvent(call=made, outcome=ToolOutcome.OK))
    return events
