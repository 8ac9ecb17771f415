"""Calls as Hermes and Qwen models write them: an object with name and arguments between `<tool_call>` tags."""

from __future__ import annotations

import json
from collections.abc import Sequence

from midthought.tools.call_formats.call_object import CallObject
from midthought.tools.call_formats.tagged import TaggedCallFormat
from midthought.tools.definition import ToolDefinition


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
