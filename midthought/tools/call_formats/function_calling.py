"""Calls between tags: `<function_calls>{"tool_name": "NAME", "parameters": {…}}</function_calls>`."""

from __future__ import annotations

from collections.abc import Sequence

from midthought.tools.call_formats.call_object import CallObject
from midthought.tools.call_formats.instructions import describe_tools
from midthought.tools.call_formats.tagged import TaggedCallFormat
from midthought.tools.definition import ToolDefinition


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
