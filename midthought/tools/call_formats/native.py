"""The call format of a model's own chat template, whatever its syntax: calls in a chat turn, results as tool messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tokenization.chat_template import Message, as_tool_calls
from midthought.tools.call_formats import ToolCallFormat, describe_tools
from midthought.tools.call_formats.call_syntax import Call, CallSyntax
from midthought.tools.definition import ToolDefinition
from midthought.tools.schemas import allowed_types
from midthought.types import ParsedAction, ToolEvent


class NativeCallFormat(ToolCallFormat):
    """Calls as the chat template writes them; all calls of a turn are run when it has ended.

    - Nothing inside a thought is a call. Calls follow the thought; after the results the model may think again.
    - The chat template writes the results, with the ids and names of their calls.
    - A call ends with its closing marker, the next opening marker, or the turn.

    Args:
        syntax: how the template writes calls.
        describes_tools: whether the template describes the tools, so that no instructions are needed.
        definitions: the tools, whose schemas tell text from numbers in syntaxes that do not write JSON.
    """

    name = "native"

    def __init__(
        self, syntax: CallSyntax, *, describes_tools: bool = True, definitions: Sequence[ToolDefinition] = ()
    ) -> None:
        super().__init__(*syntax.think_tags)
        self.syntax = syntax
        self.describes_tools = describes_tools
        self._types = {tool.name: _types(tool) for tool in definitions}

    def read(self, text: str, *, in_thought: bool) -> list[ParsedAction]:
        """Returns the calls of a turn's text."""
        return self.syntax.read(
            self._without_thoughts(text, in_thought),
            lambda tool_name, parameter: self._types.get(tool_name, {}).get(parameter, ()),
        )

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a turn's only call as the policy should write it."""
        return self.render_calls([(tool_name, parameters)])

    def render_calls(self, calls: Sequence[tuple[str, Mapping[str, Any]]], first_index: int = 0) -> str:
        """Returns all calls of a turn, (name, arguments) each. `first_index`: number of calls in earlier turns."""
        numbered = enumerate(calls, first_index)
        with_ids = [(name, arguments, self.syntax.make_id(name, index)) for index, (name, arguments) in numbered]
        return self.syntax.write(with_ids, first_index, self.think_tags)

    def answer_message(self, text: str, calls: Sequence[ParsedAction], first_index: int) -> Message:
        """Returns a turn with calls as a message for the chat template. A call that cannot be read has no arguments there."""
        content = "" if self.syntax.around_answer[0] else text[: self.syntax.first_marker(text)].strip()
        written = as_tool_calls(self._identified(calls, first_index))
        return {"role": "assistant", "content": content, "tool_calls": written}

    def result_messages(
        self, calls: Sequence[ParsedAction], events: Sequence[ToolEvent], first_index: int
    ) -> list[Message]:
        """Returns the results as messages for the chat template."""
        return [
            {"role": "tool", "name": name, "tool_call_id": call_id, "content": self.render_results([event])}
            for (name, _, call_id), event in zip(self._identified(calls, first_index), events, strict=True)
        ]

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Returns nothing if the chat template describes the tools."""
        return "" if self.describes_tools else super().instructions(definitions)

    def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
        return (
            f"You can call tools. To call one, write its name and its arguments like this:\n{example}\n"
            "The results come in the next messages. When you need no tool, answer without a call.\n\n"
            f"{describe_tools(definitions)}"
        )

    def _identified(self, calls: Sequence[ParsedAction], first_index: int) -> list[Call]:
        """Returns names, arguments and ids. Names and ids become the template's own text, so only plain characters are kept."""
        identified = []
        for index, call in enumerate(calls, first_index):
            name = _plain(call.tool_name or "unknown")
            call_id = _plain(call.call_id or "") or self.syntax.make_id(name, index)
            identified.append((name, call.parameters, call_id))
        return identified

    def _without_thoughts(self, text: str, in_thought: bool) -> str:
        """Returns the text outside of thoughts; a closing tag without an opening one stays, because an argument may hold it."""
        opening, closing = map(re.escape, self.think_tags)
        if in_thought:
            text = text.partition(self.think_tags[1])[2]
        return re.sub(rf"{opening}.*?({closing}|$)", "", text, flags=re.DOTALL)


def _types(tool: ToolDefinition) -> dict[str, tuple[str, ...]]:
    arguments = tool.json_schema()["function"]["parameters"]
    return {name: allowed_types(schema) for name, schema in arguments.get("properties", {}).items()}


def _plain(text: str) -> str:
    return re.sub(r"[^\w.\-/:]", "_", text)
