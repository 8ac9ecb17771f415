"""Call formats that write calls as JSON objects in a chat turn: anywhere in the text, or between two tags, as Hermes and Qwen
models do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats import ToolCallFormat, describe_tools
from midthought.tools.call_formats.json_object import CallObject
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


class TaggedCallFormat(ToolCallFormat):
    """A subclass sets the tags, the keys of the object, and what separates tag and object when a call is written.

    - A block extends from the opening tag to the next closing tag, even if a tag is inside a string. A block that is never
      closed is no call.
    - An opening tag inside a block starts a new block. The text before it counts if every call in it can be read (the
      closing tag was forgotten); otherwise it is discarded.
    - Nothing inside a thought is a call. A think tag inside a block discards the block.
    """

    tags: tuple[str, str]
    call_object: CallObject
    separator = ""

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it. Tags of calls and thoughts inside an argument are escaped."""
        written = self.call_object.write(tool_name, parameters, (*self.tags, *self.think_tags))
        return self.separator.join((self.tags[0], written, self.tags[1]))

    def calls_in(self, text: str) -> list[ParsedAction]:
        """Returns the calls of the blocks."""
        opening, closing = self.tags
        found: list[ParsedAction] = []
        start = None
        for tag in re.finditer(f"{re.escape(opening)}|{re.escape(closing)}", text):
            if start is not None:
                block, end = text[start : tag.start()], closing if tag[0] == closing else ""
                calls = self.call_object.read_block(block, f"{opening}{block}{end}")
                found += calls if end or all(call.success for call in calls) else []
            start = tag.end() if tag[0] == opening else None
        return found


class FunctionCallingFormat(TaggedCallFormat):
    """`<function_calls>{"tool_name": "NAME", "parameters": {…}}</function_calls>` in a chat turn; all calls of the turn
    are run when it has ended.

    - A block holds one object, several objects one after the other, or a list of them, optionally in a code fence. How an
      object is read: `CallObject`.
    - A block is a call inside a code fence, too. Block boundaries and thoughts: `TaggedCallFormat`.
    """

    name = "function_calling"
    tags = ("<function_calls>", "</function_calls>")
    call_object = CallObject("tool_name", "parameters")

    def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
        return (
            "You can call tools. To call one, write its name and its arguments as a JSON object between two tags, like "
            f"this:\n{example}\n"
            "Several objects may stand between the tags. The results come in the next messages. When you need no tool, "
            f"answer without such a block.\n\n{describe_tools(definitions)}"
        )


class HermesFormat(TaggedCallFormat):
    r"""`<tool_call>\n{"name": "NAME", "arguments": {…}}\n</tool_call>` in a chat turn, one block per call; all calls of
    the turn are run when it has ended.

    - A block is a call inside a code fence, too, as in the parsers of the servers that run such models. Block boundaries
      and thoughts: `TaggedCallFormat`.
    - A block may hold several objects or a list of them, optionally in a code fence. How an object is read: `CallObject`.
    - The chat template adds `<tool_response>` around results.
    - The instructions are not needed if the chat template describes the tools (`apply_chat_template(tools=…)`).
    """

    name = "hermes"
    tags = ("<tool_call>", "</tool_call>")
    call_object = CallObject("name", "arguments")
    separator = "\n"

    def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
        """Returns the schemas in a `<tools>` block, the format that these models are trained on."""
        schemas = [json.dumps(definition.json_schema(), ensure_ascii=False) for definition in definitions]
        return "\n".join(
            [
                "# Tools",
                "",
                "You can call functions. Their signatures stand as JSON between <tools> and </tools>:",
                "<tools>",
                *schemas,
                "</tools>",
                "",
                "To call a function, write a JSON object with its name and arguments between <tool_call> and "
                "</tool_call>, like this:",
                example,
                "Several calls may follow each other in one answer. The results come in the next messages.",
            ]
        )
