"""Messages of OpenAI's chat API as conversations for a chat template. Does not depend on HTTP or engines."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.errors import DataError
from midthought.rollout.openai_messages import calls_of, check_message, in_one_form, result_event, with_our_ids
from midthought.tokenization.chat_template import Message
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.native import NativeCallFormat

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of tools in OpenAI's API. Names become text of the template itself, so they must not contain anything else."""
_KEPT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")


def checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Returns the messages with texts as contents (`developer` is `system`; parts of text are joined).

    Raises `DataError` if one is malformed or holds something else than text, if the last one is an answer, or if a call has no
    result after it.
    """
    found: list[Message] = []
    for number, given in enumerate(in_one_form(messages)):
        message = {name: given[name] for name in _KEPT if given.get(name) is not None}
        message.setdefault("content", "")
        if not isinstance(message["content"], str):
            raise DataError(f"message {number} has content {message['content']!r:.80}; this model reads text only")
        check_message(number, message)
        for name, _ in calls_of(message):
            if not TOOL_NAME.fullmatch(name):
                raise DataError(
                    f"message {number} calls the tool {name!r:.80}; a name has letters, digits, _ and - only"
                )
        found.append(message)
    if not found or found[-1]["role"] in ("assistant", "system"):
        raise DataError("the last message must be of the user or the result of a tool (role 'user' or 'tool')")
    _check_results(found)
    return found


def _check_results(messages: Sequence[Message]) -> None:
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                raise DataError(
                    f"message {number} is a result of the call {message.get('tool_call_id')!r:.80}, which is not a call of the "
                    "answer before it"
                )
            waiting.remove(message["tool_call_id"])
        elif waiting:
            raise DataError(f"the call {waiting[0]!r:.80} has no result before message {number} (role 'tool')")
        if message["role"] == "assistant":
            waiting = [str(call.get("id")) for call in message.get("tool_calls") or ()]
    if waiting:
        raise DataError(f"the call {waiting[0]!r:.80} has no result (role 'tool')")


def results_at_end(messages: Sequence[Message]) -> dict[str, str]:
    """Returns the results, by the ids of their calls, with which the conversation ends; empty if it ends otherwise."""
    results: dict[str, str] = {}
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        results[message["tool_call_id"]] = message["content"]
    return results


def digest(messages: Sequence[Message]) -> bytes:
    """Returns a hash of what the messages say, without thoughts."""
    said = [[m["role"], m["content"], m.get("tool_call_id"), _calls(m)] for m in messages]
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=16).digest()


def _calls(message: Message) -> list[Any]:
    calls = message.get("tool_calls") or ()
    return [[call.get("id"), *each] for call, each in zip(calls, calls_of(message), strict=True)]


def for_template(messages: Sequence[Message], call_format: ToolCallFormat) -> list[Message]:
    """Returns the conversation as the chat template takes it: calls with our ids in the model's own format, else as text."""
    if isinstance(call_format, NativeCallFormat):
        return with_our_ids(messages, call_format.syntax.make_id)
    return [_as_text(message, call_format) for message in with_our_ids(messages, lambda name, number: f"call_{number}")]


def _as_text(message: Message, call_format: ToolCallFormat) -> Message:
    content = message["content"]
    if calls := calls_of(message):
        content = "\n".join(filter(None, [content, *(call_format.render_call(name, given) for name, given in calls)]))
    elif message["role"] == "tool":
        content = call_format.render_results([result_event(message["name"], {}, content)]).strip()
    return {"role": message["role"], "content": content}
