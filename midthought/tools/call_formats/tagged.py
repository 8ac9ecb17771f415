"""Call formats that write calls as JSON objects between two tags, such as those of Hermes and Qwen models."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.call_object import CallObject
from midthought.tools.call_formats.instructions import describe_tools
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction


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
