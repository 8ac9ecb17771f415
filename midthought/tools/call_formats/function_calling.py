"""Calls in a block: `<function_calls>{"tool_name": "NAME", "parameters": {…}}</function_calls>`.

Knows nothing of tokens (text comes in pieces, however it was split) nor of which tools there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats.call_form import CallForm, result_words
from midthought.tools.call_formats.instructions import describe_tools, example_parameters
from midthought.tools.call_formats.tagged import TagScanner
from midthought.tools.call_formats.thought_tags import THINK_CLOSE, THINK_OPEN, begins_in_thought
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent

FORM = CallForm("tool_name", "parameters")
TAGS = ("<function_calls>", "</function_calls>")


class FunctionCallingFormat:
    """`<function_calls>{"tool_name": "NAME", "parameters": {…}}</function_calls>` in a chat turn; all calls of the turn
    are run when it has ended.

    - A block holds one object, several one after the other, or a list of them, with or without a code fence around it
      all. How an object is read: `CallForm`.
    - The tags say that it is a call: in a code fence too. Where a block begins and ends, and what thoughts mean for it:
      `TagScanner`.
    """

    name = "function_calling"
    fence_may_hold_call = True
    stops_at_call = False

    def __init__(self, think_open: str = THINK_OPEN, think_close: str = THINK_CLOSE) -> None:
        self.think_tags = (think_open, think_close)

    def scanner(self, *, in_thought: bool) -> TagScanner:
        """A fresh scanner; `in_thought` where the prompt already opened the thought."""
        return TagScanner(TAGS, self.think_tags, FORM.read_block, in_thought=in_thought)

    def parse_all(self, text: str, *, in_thought: bool | None = None) -> list[ParsedAction]:
        """Every finished call of a turn's text, malformed ones included. `in_thought` None: as its first tag shows."""
        if in_thought is None:
            in_thought = begins_in_thought(text, self.think_tags)
        scanner = self.scanner(in_thought=in_thought)
        scanner.feed(text)
        return scanner.take()

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """A call as the policy should write it. Tags of calls and thoughts in an argument are escaped."""
        opening, closing = TAGS
        return f"{opening}{FORM.write(tool_name, parameters, (*TAGS, *self.think_tags))}{closing}"

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """The tool's words; `error: …` where it failed."""
        return result_words(events)

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """The tools and the form of a call, with an example; empty without tools."""
        if not definitions:
            return ""
        example = self.render_call(definitions[0].name, example_parameters(definitions[0]))
        return (
            "You can call tools. To call one, write its name and its arguments as a JSON object between two tags, like "
            f"this:\n{example}\n"
            "Several objects may stand between the tags. The results come in the next messages. When you need no tool, "
            f"answer without such a block.\n\n{describe_tools(definitions)}"
        )
