"""Reads conversations in OpenAI's form: checks messages with `tool_calls`, and pairs calls with results."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.errors import DataError
from midthought.tokenization.chat_template import ROLES, Message
from midthought.types import ToolCall, ToolEvent, ToolOutcome


def first_answer(messages: Sequence[Message]) -> int:
    """Returns the position of the first answer in a demonstration.

    Raises `DataError` if a message is malformed, if there is nothing before the first answer, if the last message is no answer,
    or if two answers follow each other.
    """
    for number, message in enumerate(messages):
        check_message(number, message)
    roles = [message["role"] for message in messages]
    if "assistant" not in roles[1:] or roles[0] == "assistant" or roles[-1] != "assistant":
        raise DataError(f"the roles {roles} do not begin with a question and end with an answer")
    if messages[-1].get("tool_calls"):
        raise DataError("it ends with calls; add their results (role 'tool') and the answer after them")
    for number, pair in enumerate(itertools.pairwise(roles)):
        if pair == ("assistant", "assistant"):
            raise DataError(f"two answers follow each other (messages {number} and {number + 1})")
    return roles.index("assistant")


def calls_of(message: Message) -> list[tuple[str, dict[str, Any]]]:
    """Returns name and arguments of each call of an answer."""
    return [
        (call["function"]["name"], _arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]


def events_of(answer: Message, results: Sequence[str]) -> list[ToolEvent]:
    """Returns the calls of an answer with their results, in order. Raises `DataError` if their numbers differ."""
    calls = calls_of(answer)
    if len(calls) != len(results):
        raise DataError(
            f"an answer with {len(calls)} calls has {len(results)} results after it; give one message with the role 'tool' "
            "for each call"
        )
    return [
        ToolEvent(
            call=ToolCall(tool_name=name, parameters=arguments, success=True, result=result), outcome=ToolOutcome.OK
        )
        for (name, arguments), result in zip(calls, results, strict=True)
    ]


def check_message(number: int, message: Any) -> None:
    """Raises `DataError` if this is no message."""
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        raise DataError(
            f"message {number} is {message!r:.80}; a message has a role ({', '.join(ROLES)}) and a content, such as "
            '{"role": "user", "content": "…"}'
        )
    calls = message.get("tool_calls") or ()
    if not isinstance(message.get("content"), str) and not (calls and message.get("content") is None):
        raise DataError(f"the content of message {number} is {message.get('content')!r:.80}; it must be a text")
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise DataError(
                f"message {number} has the call {call!r:.120}; a call is "
                '{"type": "function", "function": {"name": "…", "arguments": {…}}}'
            )
        try:
            _arguments(function.get("arguments"))
        except ValueError:
            raise DataError(
                f"the arguments of {function['name']!r} in message {number} are {function.get('arguments')!r:.120}; they "
                "must be a JSON object"
            ) from None


def _arguments(given: Any) -> dict[str, Any]:
    """Raises ValueError if it is no JSON object."""
    found = json.loads(given) if isinstance(given, str) else given
    if not isinstance(found, Mapping):
        raise ValueError
    return dict(found)
