"""ReAct: lines `Thought: …`, `Action: NAME`, `Action Input: {json}`; the call ends with the object's closing brace."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.instructions import describe_tools
from midthought.tools.call_formats.json_object import write_json
from midthought.tools.call_formats.streaming import StoppingScanner, as_one_result
from midthought.tools.definition import ToolDefinition
from midthought.types import ToolEvent

_HEAD = re.compile(r"[ \t]*(?:Action:(?P<name>[^\n]*)\n\s*(?:Action )?|Action )Input:")
_BEGINNING = re.compile(r"[ \t]*Action:[^\n]*\n\s*")
"""Whole lines that may become the head of a call."""
_MARKER = re.compile(r"[\s>]*(?:thought|observation|action|(?:action )?input)\s*:", re.IGNORECASE)
"""Start of a line that the policy could take for a part of a call or for another result."""
_MAX_HEAD = 400
"""Characters of a head; a longer text is prose."""
_NO_OBJECT = 'after "Action Input:" should stand a JSON object in braces, for example {"name": "value"}'
_NO_NAME = 'no tool is named; write "Action: NAME" on the line before "Action Input:"'


class ReActFormat(ToolCallFormat):
    r"""`Action: NAME` and `Action Input: {json}` in running text; the result is written back as `\nObservation: …\n`.

    - `Action:` is at the beginning of a line; NAME is the rest of it. `Action Input:` (or `Input:`) begins the next line that is
      not blank; then spaces or line ends, then `{`. If another character follows, the call is malformed and ends: the policy
      gets an error at once. A call in a code fence is a call, too.
    - Nothing within `<think>…</think>` is a call. A think tag counts everywhere; inside a call it discards the call.
    """

    name = "react"
    stops_at_call = True

    def scanner(self, *, in_thought: bool) -> ReActScanner:
        """Returns a new scanner; `in_thought` if the prompt already opened the thought."""
        return ReActScanner(self.think_tags, in_thought=in_thought)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it, for the beginning of a line. A think tag inside an argument is
        escaped."""
        return f"Action: {tool_name}\nAction Input: {write_json(dict(parameters), self.think_tags)}"

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        r"""Returns `\nObservation: <text>\n`, or `error: …` if the call failed. Each result starts a line.

        Empty lines of a result are removed, so the first empty line marks its end. A line that looks like an action or
        another result begins with `> `.
        """
        texts = (super(ReActFormat, self).render_results([event]) for event in events)
        return "".join(["\n", *(f"Observation: {as_one_result(text, _MARKER)}\n" for text in texts)])

    def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
        return (
            "You can call tools. To call one, write what you think, the tool's name and its arguments as a JSON object, "
            f"on lines like these:\nThought: why I need it\n{example}\n"
            "Stop there: the result follows after `Observation:`. Then go on in the same way, or, when you know enough, "
            f"answer without an action.\n\n{describe_tools(definitions)}"
        )


class ReActScanner(StoppingScanner):
    """Finds lines with the labels of a call."""

    def _end_text(self) -> None:
        self._clear_call()

    def _clear_call(self) -> None:
        super()._clear_call()
        self._in_call = False
        """Whether the head has ended."""

    def _skip(self, piece: str) -> str:
        if self._thought.in_thought or (self._head is None and not self._in_call and "\n" not in piece):
            return ""
        return self._in_object(piece) if self._object else piece

    def _step(self, character: str) -> None:
        if self._thought.feed(character):
            self._end_text()
        elif self._thought.in_thought:
            return
        elif self._object or (self._in_call and character == "{"):
            self._in_object(character)
        elif self._in_call:
            self._before_object(character)
        else:
            self._in_head(character)

    def _in_head(self, character: str) -> None:
        if self._head is None:
            self._head = "" if character == "\n" else None
            return
        self._head += character
        if character == ":" and (found := _HEAD.fullmatch(self._head)):
            self._in_call, self._raw, self._name = True, [self._head.lstrip(" \t")], found["name"]
            self._head = None
        elif character == "\n" and not _BEGINNING.fullmatch(self._head):
            last_line = self._head[self._head.rfind("\n", 0, -1) + 1 :]
            self._head = last_line if _BEGINNING.fullmatch(last_line) else ""
        elif len(self._head) > _MAX_HEAD:
            self._head = None

    def _before_object(self, character: str) -> None:
        self._raw.append(character)
        if not character.isspace():
            if self._name is None:  # prose after "Input:"
                self._clear_call()
                self._head = None
            else:
                self._end_call({}, _NO_OBJECT)

    def _end_call(self, parameters: Mapping[str, Any], error: str | None) -> None:
        self._name = (self._name or "").strip() or None
        super()._end_call(parameters, error if self._name else _NO_NAME)
        self._head = None
