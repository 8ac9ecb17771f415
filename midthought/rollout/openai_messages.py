"""Reads conversations in OpenAI's form: checks messages with `tool_calls`, and pairs calls with results."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midthought.errors import DataError
from midthought.tokenization.chat_template import ROLES, Message
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.types import ParsedAction, ToolCall, ToolEvent, ToolOutcome

MAX_DEPTH = 100
"""Levels of lists and objects in arguments and schemas."""
_OBJECT, _NESTED = (dict, Mapping), (list, dict, Mapping)
"""A dict is recognized first: the check of `Mapping` is slow, and runs for every message of every request."""


def in_one_form(messages: Sequence[Any]) -> list[Any]:
    """Returns the messages as mappings (OpenAI's client has objects) with texts as contents (parts of text are joined),
    `developer` as `system`, thoughts as `reasoning_content`, calls without arguments with `{}`, and the results of an answer's
    calls in the order of the calls, by their ids. What is no message is returned unchanged."""
    found = [_in_one_form(given) for given in messages]
    for number, message in enumerate(found):
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        ids = [str(call.get("id")) for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
        later = found[number + 1 :] if ids else []
        results = list(itertools.takewhile(lambda each: isinstance(each, dict) and each.get("role") == "tool", later))
        if ids and sorted(set(ids)) == sorted(str(result.get("tool_call_id")) for result in results):
            results.sort(key=lambda result: ids.index(str(result.get("tool_call_id"))))
            found[number + 1 : number + 1 + len(results)] = results
    return found


def _in_one_form(given: Any) -> Any:
    if callable(dump := getattr(given, "model_dump", None)):
        given = dump(exclude_none=True)
    if not isinstance(given, _OBJECT):
        return given
    message = dict(given)
    parts = message.get("content")
    if isinstance(parts, list | tuple) and all(_is_text(part) for part in parts):
        message["content"] = "".join(part["text"] for part in parts)
    if message.get("role") == "developer":
        message["role"] = "system"
    for key in ("reasoning", "thinking"):
        if isinstance(message.get(key), str) and not message.get("reasoning_content"):
            message["reasoning_content"] = message[key]
    if isinstance(message.get("tool_calls"), list | tuple):
        message["tool_calls"] = [_call_in_one_form(call) for call in message["tool_calls"]]
    return message


def _call_in_one_form(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if isinstance(function, Mapping) and function.get("arguments") in (None, ""):
        return {**call, "function": {**function, "arguments": {}}}
    return call


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)


def first_answer(messages: Sequence[Message]) -> int:
    """Returns the position of the first answer in a demonstration.

    Raises `DataError` if a message is malformed, if there is nothing before the first answer, if the last message is no answer,
    or if two answers follow each other.
    """
    named = {f"message {number}": message for number, message in enumerate(messages)}
    for place, message in named.items():
        check_message(place, message)
    check_results(named)
    roles = [message["role"] for message in messages]
    if "assistant" not in roles[1:] or roles[0] == "assistant" or roles[-1] != "assistant":
        raise DataError(f"the roles {roles} do not begin with a question and end with an answer")
    for number, pair in enumerate(itertools.pairwise(roles)):
        if pair == ("assistant", "assistant"):
            raise DataError(f"two answers follow each other (messages {number} and {number + 1})")
    return roles.index("assistant")


def check_results(messages: Mapping[str, Message]) -> None:
    """Raises `DataError` unless every call has its result right after its answer, and every result its call: the one with its id
    or, without ids, the one at its position. The keys of `messages` are places in the user's own list, for errors."""
    asking, waiting = "", list[Any]()
    for place, message in (*messages.items(), ("the end", {"role": ""})):
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            is_known = call_id in waiting
            if not waiting:
                raise DataError(
                    f"{place} is the result of {call_id!r:.80}, and every call before it has its result; remove it"
                )
            if call_id and all(waiting) and not is_known:
                raise DataError(
                    f"{place} has the result of {call_id!r:.80}, and the calls before it without a result have the ids "
                    f"{waiting!r:.200}; give each result the id of its call"
                )
            waiting.pop(waiting.index(call_id) if is_known else 0)
        elif waiting:
            raise DataError(
                f"the calls of {asking} have no result before {place}: {waiting!r:.200}; give one for each of them (role "
                "'tool', or a tool_result)"
            )
        if calls := message.get("tool_calls"):
            asking, waiting = place, [call.get("id") for call in calls]


def calls_of(message: Message) -> list[tuple[str, dict[str, Any]]]:
    """Returns name and arguments of each call of an answer."""
    called = (call["function"] for call in message.get("tool_calls") or ())
    return [(function["name"], _arguments(function["arguments"])) for function in called]


def events_of(answer: Message, results: Sequence[str]) -> list[ToolEvent]:
    """Returns the calls of an answer with their results, in order."""
    return [result_event(name, given, result) for (name, given), result in zip(calls_of(answer), results, strict=True)]


def result_messages(
    call_format: ToolCallFormat, calls: Sequence[ParsedAction], events: Sequence[ToolEvent], num_before: int
) -> list[Message]:
    """Returns the results of a turn's calls as messages for the chat template. `num_before`: number of calls in earlier turns."""
    if isinstance(call_format, NativeCallFormat):
        return call_format.result_messages(calls, events, num_before)
    return [{"role": "tool", "content": call_format.render_results([event])} for event in events]


def result_event(name: str | None, arguments: Mapping[str, Any], result: str) -> ToolEvent:
    """Returns the event of a call that ended with this result."""
    done = ToolCall(tool_name=name, parameters=arguments, success=True, result=result)
    return ToolEvent(call=done, outcome=ToolOutcome.OK)


def check_message(place: str, message: Any) -> None:
    """Raises `DataError` if this is no message. The error names `place`, its place in the user's own list."""
    if not isinstance(message, _OBJECT) or message.get("role") not in ROLES:
        raise DataError(
            f"{place} is {message!r:.80}; a message has a role ({', '.join(ROLES)}) and a content, such as "
            '{"role": "user", "content": "…"}'
        )
    is_plain = len(message) == 2 and isinstance(message.get("content"), str)  # as most messages are: a role and a text
    if not is_plain:
        require_shallow(message, f"{place} is")
    try:
        for one in message.values():
            (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False, default=str, skipkeys=True)).encode()
    except UnicodeEncodeError:
        raise DataError(f"{place} is not Unicode text: it has a lone surrogate; remove it") from None
    if is_plain:
        return
    if message.get("weight") not in (None, 0, 1):
        raise DataError(f"{place} has the weight {message['weight']!r}; it is 0 (not trained on) or 1")
    if message.get("function_call"):
        raise DataError(f"{place} has a function_call, OpenAI's former form; write tool_calls, and results as 'tool'")
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise DataError(f"{place} has the tool_calls {calls!r:.80}; they must be a list of calls")
    if not isinstance(message.get("content"), str) and not (calls and message.get("content") is None):
        raise DataError(
            f"the content of {place} is {message.get('content')!r:.80}; it must be text, or parts of the type 'text'"
        )
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise DataError(
                f"{place} has the call {call!r:.120}; a call is "
                '{"type": "function", "function": {"name": "…", "arguments": {…}}}'
            )
        try:
            arguments = _arguments(function.get("arguments"))
        except (ValueError, RecursionError):
            raise DataError(
                f"the arguments of {function['name']!r} in {place} are {function.get('arguments')!r:.120}; they "
                "must be a JSON object"
            ) from None
        require_shallow(arguments, f"the arguments of {function['name']!r:.80} in {place} are")


def require_shallow(value: Any, subject: str) -> None:
    """Raises `DataError` if lists and objects are nested more than `MAX_DEPTH` levels deep: templates write them recursively."""
    level = [value] if isinstance(value, _NESTED) else []
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        inner = [part for each in level for part in (each if isinstance(each, list) else each.values())]
        level = [part for part in inner if not isinstance(part, str) and isinstance(part, _NESTED)]
    raise DataError(f"{subject} nested more than {MAX_DEPTH} levels deep; write them flatter")


def _arguments(given: Any) -> dict[str, Any]:
    """Raises ValueError if it is no JSON object."""
    found = json.loads(given) if isinstance(given, str) else given
    if not isinstance(found, Mapping):
        raise ValueError
    return dict(found)


def with_our_ids(messages: Sequence[Message], make_id: Callable[[str, int], str]) -> list[Message]:
    """Returns the messages with the ids of `make_id(name of the tool, number of the call)`, and the names of tools beside
    results, which are in the order of their calls (`in_one_form`)."""
    said: list[Message] = []
    waiting: list[tuple[str, str]] = []
    num_calls = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            names = [call["function"]["name"] for call in calls]
            waiting = [(make_id(name, number), name) for number, name in enumerate(names, num_calls)]
            num_calls += len(calls)
            renamed = [{**call, "id": ours, "type": "function"} for call, (ours, _) in zip(calls, waiting, strict=True)]
            message = {**message, "content": message.get("content") or "", "tool_calls": renamed}
        elif message["role"] == "tool":
            ours, name = waiting.pop(0) if waiting else ("", "")
            message = {**message, "tool_call_id": ours, "name": name}
        said.append(message)
    return said
