"""Calls as JSON objects anywhere in a chat turn: `{"tool": "NAME", "parameters": {…}}`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.call_object import CallObject
from midthought.tools.call_formats.instructions import describe_tools
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction

CALL_OBJECT = CallObject("tool", "parameters")
_KEYS = ('"tool"', "'tool'", "tool")
"""Spellings of the key. Those that are not JSON are found, too, so that the model can be given an error."""
_BRACE = re.compile(r"\{")
_IN_OBJECT = re.compile(r'"(?:[^"\\\n]|\\.)*+["\n]?|[{}:,]|[^\s"{}:,]+', re.DOTALL)
"""A JSON string contains no line end: outside of calls, the quote was prose."""
_IN_CALL = re.compile(r'"(?:[^"\\]|\\.)*+"?|[{}:,]|[^\s"{}:,]+', re.DOTALL)


class JSONFormat(ToolCallFormat):
    """`{"tool": "NAME", "parameters": {…}}` in a chat turn; all calls of the turn are run when it has ended.

    - An object with the key `tool` is a call anywhere in the text: in prose, in a code fence or span, in a list, inside
      another object. Nothing inside the braces of a call is another call: its arguments are data. An object without that
      key is no call, and neither is an object inside a string.
    - The call ends with its closing brace, whether or not the JSON can be read. Unclosed braces around it do not matter.
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
        """Returns the calls, in the order of their ends."""
        objects = (text[start:end] for start, end in _spans(text))
        return [call for each in objects for call in CALL_OBJECT.read_block(each, each)]


def _spans(text: str) -> list[tuple[int, int]]:
    """Returns start and end of the objects with the key `tool`. Of two of which one is inside the other, the outer one is the
    call."""
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    """Positions of the open braces."""
    call_depth, place = 0, 0
    """Number of open braces when the key `tool` was read; 0 outside of calls."""
    key: str | None = None
    """The key so far; None if no key is expected here or it is another key."""
    while token := (_IN_CALL if call_depth else _IN_OBJECT if opened else _BRACE).search(text, place):
        place = token.end()
        if token[0] == "{":
            opened.append(token.start())
            key = ""
        elif token[0] == "}":
            start, key = opened.pop(), None
            if call_depth > len(opened):
                call_depth = 0
                while spans and spans[-1][0] > start:
                    spans.pop()
                spans.append((start, place))
        elif token[0] == ":":
            call_depth = call_depth or (len(opened) if key in _KEYS else 0)
            key = None
        elif token[0] == ",":
            key = ""
        elif key is not None:
            key = key + token[0] if len(key) < len(_KEYS[0]) else None
    return spans
