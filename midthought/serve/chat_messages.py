"""Messages of OpenAI's chat API as conversations for a chat template. Does not depend on HTTP or engines."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.errors import DataError
from midthought.rollout.openai_messages import (
    calls_of,
    check_message,
    check_results,
    in_one_form,
    result_event,
    with_our_ids,
)
from midthought.tokenization.chat_template import Message, as_tool_calls
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.types import ParsedAction

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of tools in OpenAI's API. Names become text of the template itself, so they must not contain anything else."""
_CANONICAL = json.JSONEncoder(sort_keys=True)
_KEPT = frozenset({"role", "content", "tool_calls", "tool_call_id", "reasoning_content", "signature"})


def checked_messages(messages: Sequence[Mapping[str, Any]], places: Sequence[str] | None = None) -> list[Message]:
    """Returns the messages with texts as contents (`developer` is `system`; parts of text are joined).

    `places`: how errors name them, each another; None: by their index, `messages.0`. Raises `DataError` if one is malformed or
    holds something else than text, if the last one is an answer, or if a call has no result after it.
    """
    found: dict[str, Message] = {}
    places = places or [f"messages.{number}" for number in range(len(messages))]
    for given in in_one_form([{**given, "place": place} for place, given in zip(places, messages, strict=True)]):
        message = {name: value for name, value in given.items() if name in _KEPT and value is not None}
        message.setdefault("content", "")
        _check_message(given["place"], message)
        found[given["place"]] = message
    said = list(found.values())
    if all(message["role"] == "system" for message in said) or said[-1]["role"] == "assistant":
        raise DataError("the last message must be of the user or the result of a tool (role 'user' or 'tool')")
    check_results(found)
    return said


def _check_message(place: str, message: Message) -> None:
    check_message(place, message)
    for call in message.get("tool_calls") or ():
        if not TOOL_NAME.fullmatch(name := call["function"]["name"]):
            raise DataError(f"{place} calls the tool {name!r:.80}; a name has letters, digits, _ and - only")


def can_come_back(call: ParsedAction) -> bool:
    """Whether a client may send this call back as `tool_calls`: it was read, and its name and arguments are valid there."""
    calls = as_tool_calls([(call.tool_name or "", call.parameters, "")])
    try:
        _check_message("", {"role": "assistant", "content": "", "tool_calls": calls})
    except DataError:
        return False
    return bool(call.success)


def chained(messages: Sequence[Message], tools: Sequence[str]) -> list[bytes]:
    """Returns a digest of the descriptions of tools, then one for each message that depends on all before it.

    Two messages are equal if role, text, and names and arguments of the calls are; ids, thoughts, the spacing and order of
    arguments, and the order of the tools do not matter. A result belongs to the call at its position.
    """
    return list(itertools.accumulate(messages, next_digest, initial=digest_of(b"", sorted(tools))))


def next_digest(before: bytes, message: Message) -> bytes:
    """Returns the digest after one more message."""
    calls = _CANONICAL.encode(calls_of(message)) if message.get("tool_calls") else ""
    return digest_of(before, (message["role"], message["content"], calls))


def digest_of(before: bytes, texts: Sequence[str]) -> bytes:
    """Returns the digest of texts after the digest of what was before them."""
    return hashlib.blake2b(before + repr(texts).encode(), digest_size=16).digest()


def issued_ids(messages: Sequence[Message]) -> set[str]:
    """Returns the ids in the answers: of calls, and signatures of thoughts."""
    answers = [message for message in messages if message["role"] == "assistant"]
    calls = [call.get("id") for message in answers for call in message.get("tool_calls") or ()]
    return {each for each in (*calls, *(message.get("signature") for message in answers)) if isinstance(each, str)}


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
