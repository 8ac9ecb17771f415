"""ReAct: lines `Thought: …`, `Action: NAME`, `Action Input: {json}`; the call ends with the object's closing brace."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.instructions import describe_tools
from midthought.tools.call_formats.json_object import write_json
from midthought.tools.call_formats.quoting import QuotingTracker
from midthought.tools.call_formats.streaming import StoppingScanner, as_one_result
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent

_INPUT = r"action[ \t_-]*(?:\d+[ \t]*)?input[ \t]*\d*[ \t*]*"
_ACTION_LABEL = re.compile(r"[\s*#]*action[ \t]*\d*[ \t*]*", re.IGNORECASE)
_INPUT_LABEL = re.compile(rf"[\s*#]*{_INPUT}", re.IGNORECASE)
_INPUT_AT_END = re.compile(rf"(?:^|[\s*#`]){_INPUT}$", re.IGNORECASE)
_SHORT_INPUT_AT_END = re.compile(r"\n[ \t*#`]*input[ \t]*\d*[ \t*]*$", re.IGNORECASE)
"""`Input:` on a line of its own after `Action:`, as the setup package writes it."""
_OBSERVATION_LABEL = re.compile(r"[\s*#]*observation[ \t]*\d*[ \t*]*", re.IGNORECASE)
_MARKER = re.compile(rf"[\s*#>]*(?:thought|observation|action|{_INPUT})[ \t\d*]{{0,9}}:", re.IGNORECASE)
"""Start of a line that the policy could take for a part of a call or for another result."""
_MAX_LABEL = 40
"""Characters before a line's first colon; a longer beginning is prose."""
_MAX_HEAD = 200
"""Characters between `Action:` and `Action Input:`; a longer text is prose."""
_AROUND_NAME = " \t\r*`\"'[]"
_NO_OBJECT = 'after "Action Input:" should stand a JSON object in braces, for example {"name": "value"}'
_NO_NAME = 'no tool is named; write "Action: NAME" on the line before "Action Input:"'


class ReActFormat(ToolCallFormat):
    r"""`Action: NAME` and `Action Input: {json}` in running text; the result is written back as `\nObservation: …\n`.

    - `Action:` is at the beginning of a line; NAME is the rest of it, or the next line that is not blank. `Action Input:`
      (or `Input:` on a line of its own) follows, then spaces or line ends, then `{`. If another character follows, the call
      is malformed and ends: the policy gets an error at once. Labels may be in bold, numbered, and in any case; names in
      quotes, backticks or brackets; the object in a fence or a code span.
    - Quoted text contains no call: fenced code, and the text after an `Observation:` that the policy wrote itself, up to
      a blank line.
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


class _Stage(enum.Enum):
    """The part of a call that is being read."""

    NONE = enum.auto()
    HEAD = enum.auto()
    """After `Action:`."""
    INPUT = enum.auto()
    """After `Action Input:`."""
    FENCE = enum.auto()
    """In the backticks, and the language after them, that may enclose the object."""
    OBJECT = enum.auto()


class ReActScanner(StoppingScanner):
    """Finds lines with the labels of a call."""

    def _end_text(self) -> None:
        self._quoting = QuotingTracker()
        self._in_observation = False
        self._label: list[str] | None = []
        """The line so far; None after its first colon, or if it is too long for a label."""
        self._line_is_blank = True
        self._num_to_unwrap = 0
        """Expected backticks that close the fence or code span around the last call's object."""
        self._clear_call()

    def _clear_call(self) -> None:
        super()._clear_call()
        self._stage = _Stage.NONE
        self._head = ""
        """The text after `Action:`."""
        self._name: str | None = None
        """The tool's name, empty if it is missing; None if there is no `Action:`."""
        self._num_wrapping = 0
        """Backticks before the object."""

    def _skip(self, piece: str) -> str:
        if self._thought.in_thought:
            return ""
        return self._in_object(piece) if self._stage is _Stage.OBJECT else piece

    def _step(self, character: str) -> None:
        if self._thought.feed(character):
            self._end_text()
        elif self._thought.in_thought:
            return
        elif self._stage is _Stage.OBJECT:
            self._in_object(character)
        else:
            label = self._follow_line(character)
            if self._stage in (_Stage.INPUT, _Stage.FENCE):
                self._before_object(character)
            elif not (self._quoting.in_fence or self._in_observation):
                self._outside_input(character, label)
            elif self._stage is _Stage.HEAD:
                self._clear_call()

    def _follow_line(self, character: str) -> str | None:
        """Tracks lines, fences and observations; returns the line's label if this is its first colon."""
        if self._num_to_unwrap and (character == "`" or character.isspace()):
            self._num_to_unwrap -= character == "`"
        else:
            self._num_to_unwrap = 0
            self._quoting.feed(character)
        if character == "\n":
            if self._in_observation and self._line_is_blank:
                self._in_observation = False
                self._quoting = QuotingTracker()
            self._label, self._line_is_blank = [], True
            return None
        self._line_is_blank = self._line_is_blank and character.isspace()
        if self._label is None:
            return None
        if character != ":":
            self._label.append(character)
            if len(self._label) > _MAX_LABEL:
                self._label = None
            return None
        label, self._label = "".join(self._label), None
        if _OBSERVATION_LABEL.fullmatch(label) and not self._quoting.in_fence:
            self._in_observation = True
        return label

    def _outside_input(self, character: str, label: str | None) -> None:
        """Before `Action:`, or between it and `Action Input:`."""
        if character == ":" and self._at_colon(label):
            return
        if self._stage is _Stage.HEAD:
            self._raw.append(character)
            self._head += character
            if len(self._head) > _MAX_HEAD:
                self._clear_call()

    def _at_colon(self, label: str | None) -> bool:
        """Returns whether a label that begins a call or its input ended here."""
        if found := _INPUT_AT_END.search(self._head) or _SHORT_INPUT_AT_END.search(self._head):
            self._name = _name_in(self._head[: found.start()])
            self._stage = _Stage.INPUT
        elif label is None:
            return False
        elif _INPUT_LABEL.fullmatch(label):
            self._stage, self._raw = _Stage.INPUT, list(label)
        elif _ACTION_LABEL.fullmatch(label):
            self._clear_call()
            self._stage, self._raw = _Stage.HEAD, list(label)
        else:
            return False
        self._raw.append(":")
        return True

    def _before_object(self, character: str) -> None:
        """Between `Action Input:` and `{`."""
        if character == "{":
            self._stage = _Stage.OBJECT
            self._in_object(character)
            return
        self._raw.append(character)
        if character == "`":
            self._stage = _Stage.FENCE
            self._num_wrapping += 1
        elif character.isspace():
            self._stage = _Stage.INPUT
        elif not (character == "*" or (self._stage is _Stage.FENCE and character.isalnum())):
            if self._name is None:
                self._clear_call()
            else:
                self._end_call({}, _NO_OBJECT)

    def _end_call(self, parameters: Mapping[str, Any], error: str | None) -> None:
        if self._num_wrapping and self._stage is _Stage.OBJECT:
            self._num_to_unwrap, self._quoting = self._num_wrapping, QuotingTracker()
        raw_text, name = "".join(self._raw), self._name or None
        error = error if name else _NO_NAME
        self._finished.append(
            ParsedAction(
                tool_name=name,
                parameters={} if error else parameters,
                raw_text=raw_text,
                success=error is None,
                error=error,
            )
        )
        self._clear_call()


def _name_in(head: str) -> str:
    """Returns the first line that is not empty, without quotes, backticks and brackets around it; or the empty string."""
    return next((name for line in head.split("\n") if (name := line.strip(_AROUND_NAME))), "")
