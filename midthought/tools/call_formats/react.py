"""ReAct: lines `Thought: …`, `Action: NAME`, `Action Input: {json}`; the call ends with the object's closing brace."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats import ToolCallFormat, describe_tools
from midthought.tools.call_formats.json_object import write_json
from midthought.tools.call_formats.streaming import StoppingScanner, as_one_result
from midthought.tools.definition import ToolDefinition
from midthought.types import ToolEvent

_HEAD = re.compile(r"[ \t]*(?:Action:(?P<name>[^\n]*)\n\s*(?:Action )?|Action )Input:")
_BEGINNING = re.compile(r"\A[ \t]*Action:[^\n]*\n\s*")
"""Whole lines that may become the head of a call, if the next line does not end before."""
_MAY_BEGIN = re.compile(r"[ \t]*(?:A|\Z)")
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

    def resume(self) -> None:
        """Discards an unfinished call; a line begins."""
        super().resume()
        self._is_in_line = False
        """Whether no head can begin before the next line."""

    def _clear_call(self) -> None:
        super()._clear_call()
        self._in_call = False
        """Whether the head has ended."""

    def _read(self, text: str) -> str:
        while text and not self._in_thought:
            if self._object:
                text = self._in_object(text)
            elif self._in_call:
                text = self._before_object(text)
            elif self._is_in_line:
                _, line_end, text = text.partition("\n")
                self._is_in_line = not line_end
            elif (head := _HEAD.match(text)) and head.end() <= _MAX_HEAD + 1:
                self._in_call, self._raw, self._name = True, [head[0].lstrip(" \t")], head["name"]
                text = text[head.end() :]
            elif _MAY_BEGIN.match(text) and len(text) <= _MAX_HEAD and "\n" not in _BEGINNING.sub("", text, count=1):
                return text
            else:
                self._is_in_line = True
        return ""

    def _before_object(self, text: str) -> str:
        self._is_in_line = True
        rest = text.lstrip()
        self._raw.append(text[: len(text) - len(rest)])
        if rest.startswith("{"):
            return self._in_object(rest)
        if rest and self._name is None:  # prose after "Input:"
            self._clear_call()
        elif rest:
            self._raw.append(rest[0])
            self._end_call({}, _NO_OBJECT)
        return rest[1:]

    def _end_call(self, parameters: Mapping[str, Any], error: str | None) -> None:
        self._name = (self._name or "").strip() or None
        super()._end_call(parameters, error if self._name else _NO_NAME)
