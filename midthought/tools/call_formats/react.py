"""ReAct: lines `Thought: …`, `Action: NAME`, `Action Input: {json}`; the call ends with the object's closing brace.

Knows nothing of tokens (text comes in pieces, however it was split) nor of which tools there are.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats.call_form import result_words
from midthought.tools.call_formats.instructions import describe_tools, example_parameters
from midthought.tools.call_formats.json_object import BadObjectError, ObjectScanner, load_object, write_json
from midthought.tools.call_formats.quoting import QuotingTracker
from midthought.tools.call_formats.thought_tags import (
    THINK_CLOSE,
    THINK_OPEN,
    ThoughtTracker,
    begins_in_thought,
    plain_text,
)
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent

_INPUT = r"action[ \t_-]*(?:\d+[ \t]*)?input[ \t]*\d*[ \t*]*"
_ACTION_LABEL = re.compile(r"[\s*#]*action[ \t]*\d*[ \t*]*", re.IGNORECASE)
_INPUT_LABEL = re.compile(rf"[\s*#]*{_INPUT}", re.IGNORECASE)
_INPUT_AT_END = re.compile(rf"(?:^|[\s*#`]){_INPUT}$", re.IGNORECASE)
_OBSERVATION_LABEL = re.compile(r"[\s*#]*observation[ \t]*\d*[ \t*]*", re.IGNORECASE)
_MAX_LABEL = 40
"""Characters before a line's first colon; with more it is prose."""
_MAX_HEAD = 200
"""Characters between `Action:` and `Action Input:`; with more it is prose."""
_AROUND_NAME = " \t\r*`\"'[]"
_NO_OBJECT = 'after "Action Input:" should stand a JSON object in braces, for example {"name": "value"}'
_NO_NAME = 'no tool is named; write "Action: NAME" on the line before "Action Input:"'


class ReActFormat:
    r"""`Action: NAME` and `Action Input: {json}` in running text; the result is written back as `\nObservation: …\n`.

    - `Action:` begins a line; NAME is the rest of it, or the next line that is not blank. `Action Input:` follows, then
      blanks or line ends, then `{`. With anything else there, the call is malformed and ends: the policy is told at
      once. Labels may be in bold, numbered, in any case; names in quotes, backticks or brackets; the object in a fence
      or a code span.
    - Quoted text holds no call: fenced code, and what follows an `Observation:` that the policy wrote itself, up to a
      blank line.
    - Nothing within `<think>…</think>` is a call. A think tag counts wherever it stands; one inside a call makes that
      call void.
    """

    name = "react"
    fence_may_hold_call = False
    stops_at_call = True

    def __init__(self, think_open: str = THINK_OPEN, think_close: str = THINK_CLOSE) -> None:
        self.think_tags = (think_open, think_close)

    def scanner(self, *, in_thought: bool) -> ReActScanner:
        """A fresh scanner; `in_thought` where the prompt already opened the thought."""
        return ReActScanner(self, in_thought=in_thought)

    def parse_all(self, text: str, *, in_thought: bool | None = None) -> list[ParsedAction]:
        """Every finished call of a turn's text, malformed ones included. `in_thought` None: as its first tag shows."""
        if in_thought is None:
            in_thought = begins_in_thought(text, self.think_tags)
        scanner = self.scanner(in_thought=in_thought)
        scanner.feed(text)
        return scanner.take()

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """A call as the policy should write it, beginning a line. A think tag in an argument is escaped."""
        return f"Action: {tool_name}\nAction Input: {write_json(dict(parameters), self.think_tags)}"

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        r"""`\nObservation: <words>\n`; `error: …` where the tool failed. Several follow each other on lines of their own.

        Empty lines of a result are left out, so that the first empty line is where the tool's words end.
        """
        return "".join(["\n", *(f"Observation: {_without_empty_lines(result_words([event]))}\n" for event in events)])

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """The tools and the form of a call, with an example; empty without tools."""
        if not definitions:
            return ""
        example = self.render_call(definitions[0].name, example_parameters(definitions[0]))
        return (
            "You can call tools. To call one, write what you think, the tool's name and its arguments as a JSON object, "
            f"on lines like these:\nThought: why I need it\n{example}\n"
            "Stop there: the result follows after `Observation:`. Then go on in the same way, or, when you know enough, "
            f"answer without an action.\n\n{describe_tools(definitions)}"
        )


class _Stage(enum.Enum):
    """What of a call has been read."""

    NONE = enum.auto()
    HEAD = enum.auto()
    """After `Action:`."""
    INPUT = enum.auto()
    """After `Action Input:`."""
    FENCE = enum.auto()
    """In the backticks, and the language after them, that the object may be wrapped in."""
    OBJECT = enum.auto()


class ReActScanner:
    """Follows one turn's text; amortised constant time per character.

    A piece is read to its end even where a call ends in it, so that how the text was split changes nothing.
    """

    def __init__(self, call_format: ReActFormat, *, in_thought: bool) -> None:
        self._thought = ThoughtTracker(call_format.think_tags, in_thought=in_thought)
        self._is_prose = plain_text("\n`:", call_format.think_tags)
        self._finished: list[ParsedAction] = []
        self._begin_text()

    def _begin_text(self) -> None:
        self._quoting = QuotingTracker()
        self._in_observation = False
        self._label: list[str] | None = []
        """The line so far; None behind its first colon, or where it is too long for a label."""
        self._line_is_blank = True
        self._is_at_rest = False
        """In prose, where no label can end: what is prose itself changes nothing."""
        self._num_to_unwrap = 0
        """Backticks that close what the last call's object was wrapped in, still to come."""
        self._drop_call()

    def _drop_call(self) -> None:
        self._stage = _Stage.NONE
        self._raw: list[str] = []
        """Everything since the label `Action`."""
        self._head = ""
        """What stands after `Action:`."""
        self._name: str | None = None
        """The tool's name, empty where there is none in its place; None where there is no `Action:`."""
        self._num_wrapping = 0
        """Backticks before the object."""
        self._object: list[str] = []
        self._object_scanner = ObjectScanner()

    def feed(self, piece: str) -> bool:
        """Take the next piece; True where a call ended inside it."""
        if self._is_at_rest and self._is_prose(piece):
            return False
        num_finished = len(self._finished)
        for character in self._skip(piece) if self._thought.may_skip(piece) else piece:
            self._step(character)
        return len(self._finished) > num_finished

    def _skip(self, piece: str) -> str:
        """Take at once what may be of a piece without tags; what is left of it is to be stepped over."""
        if self._thought.in_thought or self._skip_outside_object(piece):
            return ""
        return self._in_object(piece) if self._stage is _Stage.OBJECT else piece

    def _skip_outside_object(self, piece: str) -> bool:
        """Take a piece at once where nothing in it may begin or end a call, a line or a quote; else False."""
        is_in_head = self._stage is _Stage.HEAD and len(self._head) + len(piece) <= _MAX_HEAD
        if not (is_in_head or self._stage is _Stage.NONE) or self._num_to_unwrap:
            return False
        if not self._is_prose(piece) or not self._quoting.skip(piece):
            return False
        if is_in_head:
            self._raw.append(piece)
            self._head += piece
        self._line_is_blank = self._line_is_blank and (not piece or piece.isspace())
        if self._label is not None:
            self._label.extend(piece)
            if len(self._label) > _MAX_LABEL:
                self._label = None
        is_begun = not (self._line_is_blank or self._quoting.line_is_blank)
        self._is_at_rest = is_begun and self._label is None and not is_in_head
        return True

    def take(self) -> list[ParsedAction]:
        """The calls that ended since the last `take`."""
        taken, self._finished = self._finished, []
        return taken

    def resume(self) -> None:
        """A result or reply now stands in the context, ending in a line end: calls, code and quotes left open before it
        are void; only the thought goes on."""
        self._thought.forget()
        self._begin_text()

    def _step(self, character: str) -> None:
        self._is_at_rest = False
        if self._thought.feed(character):
            self._begin_text()
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
                self._drop_call()

    def _follow_line(self, character: str) -> str | None:
        """Keep track of lines, fences and observations; the line's label where its first colon was just read."""
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
                self._drop_call()

    def _at_colon(self, label: str | None) -> bool:
        """Whether a label ended here that begins a call or its input."""
        if found := _INPUT_AT_END.search(self._head):
            self._name = _name_in(self._head[: found.start()])
            self._stage = _Stage.INPUT
        elif label is None:
            return False
        elif _INPUT_LABEL.fullmatch(label):
            self._stage, self._raw = _Stage.INPUT, list(label)
        elif _ACTION_LABEL.fullmatch(label):
            self._drop_call()
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
                self._drop_call()
            else:
                self._finish({}, _NO_OBJECT)

    def _in_object(self, text: str) -> str:
        """Take a text up to the brace that closes the object; what follows it."""
        length = self._object_scanner.feed(text)
        taken = text[:length] if length else text
        self._raw.append(taken)
        self._object.append(taken)
        if not length:
            return ""
        if self._num_wrapping:
            self._num_to_unwrap, self._quoting = self._num_wrapping, QuotingTracker()
        try:
            self._finish(load_object("".join(self._object)))
        except BadObjectError as bad:
            self._finish({}, str(bad))
        return text[length:]

    def _finish(self, parameters: Mapping[str, Any], error: str | None = None) -> None:
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
        self._drop_call()


def _name_in(head: str) -> str:
    """The first line's words that are not mere decoration; empty where there are none."""
    return next((name for line in head.split("\n") if (name := line.strip(_AROUND_NAME))), "")


def _without_empty_lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
