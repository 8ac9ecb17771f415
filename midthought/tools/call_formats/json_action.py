"""Calls as JSON objects anywhere in a chat turn: `{"tool": "NAME", "parameters": {…}}`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.call_object import CallObject
from midthought.tools.call_formats.instructions import describe_tools
from midthought.tools.call_formats.json_object import BadObjectError, load_object
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction

CALL_OBJECT = CallObject("tool", "parameters")
_START = re.compile(r"""\{\s*(?:"tool"|'tool'|tool)\s*:""")
"""Start of an object that is a call even if it cannot be read, so that the model can be given an error."""
_TOKEN, _STRING = re.compile(r'[{}"]'), re.compile(r'"(?:[^"\\\n]|\\.)*+"')


class JSONFormat(ToolCallFormat):
    """`{"tool": "NAME", "parameters": {…}}` in a chat turn; all calls of the turn are run when it has ended.

    - An object with the key `tool` is a call anywhere in the text: in prose, in a code fence or span, in a list, inside
      another object. Nothing inside the braces of a call is another call: its arguments are data. An object without that
      key is no call, and neither is an object inside a string.
    - The call ends with its closing brace. If `tool` is its first key, it is a call whether or not the JSON can be read, and if
      it is never closed, nothing after it is a call.
    - Nothing within `<think>…</think>` is a call. A think tag counts everywhere; inside a call's braces it discards the
      call.
    - How the object is read: `CallObject`.
    """

    name = "json"

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it. A think tag inside an argument is escaped."""
        return CALL_OBJECT.write(tool_name, parameters, self.think_tags)

    def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
        return (
            "You can call tools. To call one, write a JSON object with its name and its arguments, like this:\n"
            f"{example}\n"
            "You may call several in one answer. The results come in the next messages. When you need no tool, answer "
            f"without such an object.\n\n{describe_tools(definitions)}"
        )

    def calls_in(self, text: str) -> list[ParsedAction]:
        """Returns the calls. Of two of which one is inside the other, the outer one is the call."""
        calls: list[ParsedAction] = []
        place = 0
        for start, end in _objects(text):
            if start >= place and (_START.match(text, start) or _has_tool(text[start:end])):
                calls.append(CALL_OBJECT.read_object(text[start:end]))
                place = end
        return calls


def _has_tool(text: str) -> bool:
    try:
        return '"tool"' in text and "tool" in load_object(text)
    except BadObjectError:
        return False


def _objects(text: str) -> list[tuple[int, int]]:
    """Returns start and end of the texts in braces, in the order of their starts, up to a call that is never closed."""
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    place = 0
    while found := _TOKEN.search(text, place):
        place = found.end()
        if found[0] == "{":
            opened.append(found.start())
        elif opened and found[0] == "}":
            spans.append((opened.pop(), place))
        elif opened and (string := _STRING.match(text, found.start())):
            place = string.end()
    limit = next((start for start in opened if _START.match(text, start)), len(text))
    return sorted(span for span in spans if span[0] < limit)
