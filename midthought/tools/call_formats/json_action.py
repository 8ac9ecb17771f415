"""Calls as JSON objects anywhere in a chat turn: `{"tool": "NAME", "parameters": {…}}`."""

from __future__ import annotations

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
        return [CALL_OBJECT.read_object(text[start:end]) for start, end in _spans(text)]


def _spans(text: str) -> list[tuple[int, int]]:
    """Returns start and end of the objects with the key `tool`. Of two of which one is inside the other, the outer one is the
    call."""
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    """Positions of the open braces."""
    call_depth = 0
    """Number of open braces when the key `tool` was read; 0 outside of calls."""
    key: str | None = None
    """The key so far; None if no key is expected here or it is another key."""
    in_string = is_escaped = False
    for place, character in enumerate(text):
        if in_string:
            # A JSON string contains no line end: outside of calls, the quote was prose.
            ends = character == '"' or (character == "\n" and not call_depth)
            in_string = is_escaped or not ends
            is_escaped = character == "\\" and not is_escaped
        elif character == "{":
            opened.append(place)
            key = ""
            continue
        elif not opened:
            continue
        elif character == "}":
            start = opened.pop()
            if call_depth > len(opened):
                call_depth = 0
                while spans and spans[-1][0] > start:
                    spans.pop()
                spans.append((start, place + 1))
            if not opened:
                key = None
        elif character == ":":
            if key in _KEYS and not call_depth:
                call_depth = len(opened)
            key = None
        elif character == ",":
            key = ""
            continue
        elif character.isspace():
            continue
        else:
            in_string = character == '"'
        if key is not None:
            key = key + character if len(key) < len(_KEYS[0]) else None
    return spans
