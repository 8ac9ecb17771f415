"""Calls as Hermes and Qwen models write them: `<tool_call>` and `</tool_call>` around an object with name and arguments.

Knows nothing of tokens (text comes in pieces, however it was split) nor of which tools there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats.call_form import CallForm, result_words
from midthought.tools.call_formats.instructions import example_parameters
from midthought.tools.call_formats.tagged import TagScanner
from midthought.tools.call_formats.thought_tags import THINK_CLOSE, THINK_OPEN, begins_in_thought
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent

FORM = CallForm("name", "arguments")
TAGS = ("<tool_call>", "</tool_call>")


class HermesFormat:
    r"""`<tool_call>\n{"name": "NAME", "arguments": {…}}\n</tool_call>` in a chat turn, as often as there are calls; all
    calls of the turn are run when it has ended.

    - The tags say that it is a call: in a code fence too, as the servers that run such models read it. Where a block
      begins and ends, and what thoughts mean for it: `TagScanner`.
    - Several objects, or a list of them, may stand in one block, with a code fence around them. How an object is read:
      `CallForm`.
    """

    name = "hermes"
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
        return f"{opening}\n{FORM.write(tool_name, parameters, (*TAGS, *self.think_tags))}\n{closing}"

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """The tool's words; `error: …` where it failed. `<tool_response>` is the chat template's business."""
        return result_words(events)

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """The schemas in a `<tools>` block, as these models were trained, and the form of a call; empty without tools.

        Not needed where the chat template describes the tools itself (`apply_chat_template(tools=…)`).
        """
        if not definitions:
            return ""
        schemas = [json.dumps(definition.json_schema(), ensure_ascii=False) for definition in definitions]
        example = self.render_call(definitions[0].name, example_parameters(definitions[0]))
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
