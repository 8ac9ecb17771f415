"""Calls in mid-thought: `#call NAME {json}` anywhere in running text, ended by the object's closing brace."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.instructions import describe_tools
from midthought.tools.call_formats.json_object import write_json
from midthought.tools.call_formats.quoting import QuotingTracker
from midthought.tools.call_formats.streaming import StoppingScanner, as_one_result
from midthought.tools.call_formats.thought_tags import THINK_CLOSE, THINK_OPEN
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent, ToolOutcome

_KEYWORD = "#call"
_BLANKS = " \t\r\n"
_PROSE = re.compile(r"[^\n`#]*")
_MARKER = re.compile(r"[\s>]*#(?:call\b|[\w.-]{1,200}_(?:result|error):)")
"""Start of a line that the policy could take for a call or for the result of another tool."""

Layout = Literal["inside", "between"]


class _Stage(enum.Enum):
    """The part of a call that is being read."""

    NONE = enum.auto()
    KEYWORD = enum.auto()
    BEFORE_NAME = enum.auto()
    NAME = enum.auto()
    BEFORE_OBJECT = enum.auto()
    OBJECT = enum.auto()


class InThoughtFormat(ToolCallFormat):
    """`#call NAME {json}`, with the result written back into the same thought.

    - `#call` may occur anywhere except directly after a word character or another `#`. Spaces or line ends follow it.
      NAME is a letter or `_`, then letters, digits, `_`, `.` or `-`; spaces or line ends may follow. The next character
      is `{`, or it is no call. The call ends with its closing brace, whether or not the JSON can be read.
    - Quoted text contains no call: fenced code, a code span up to the end of its line, and a `#NAME_result:` or
      `#NAME_error:` that the policy wrote itself, up to a blank line (`quoting.py`).
    - Layout `inside`: only calls within `<think>…</think>` count. `between`: the thought is closed before a call and
      opened again after it, so calls count everywhere. A think tag counts everywhere; inside a call's braces it discards
      the call.
    """

    name = "in_thought"
    stops_at_call = True

    def __init__(self, layout: Layout = "inside", think_open: str = THINK_OPEN, think_close: str = THINK_CLOSE) -> None:
        super().__init__(think_open, think_close)
        self.layout = layout
        self.think_open = think_open
        self.think_close = think_close

    def scanner(self, *, in_thought: bool) -> InThoughtScanner:
        """Returns a new scanner; `in_thought` if the prompt already opened the thought."""
        return InThoughtScanner(self.think_tags, calls_everywhere=self.layout == "between", in_thought=in_thought)

    def parse_all(self, text: str, *, in_thought: bool | None = True) -> list[ParsedAction]:
        """Returns every finished call of a text, malformed ones included. Usually the prompt opened the thought."""
        return super().parse_all(text, in_thought=bool(in_thought))

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it. A think tag inside an argument is escaped."""
        return f"{_KEYWORD} {tool_name} {write_json(dict(parameters), self.think_tags)}"

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        r"""Returns the text after the closing brace: `"\n#NAME_result:\n<text>\n\n"`, or `"\n#NAME_error: <text>\n\n"`
        on one line (`#call_error:` if the call had no name). Several results follow each other without another line.

        Empty lines of a result are removed, so the first empty line marks its end. A line that looks like a call or
        another result begins with `> `.
        """
        return "".join(["\n", *(_render(event) for event in events)])

    def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
        where = (
            f"Between {self.think_open} and {self.think_close}" if self.layout == "inside" else "Between two thoughts"
        )
        return (
            f"You can call tools while you think. {where}, write {_KEYWORD}, the tool's name and its arguments as a JSON "
            f"object, like this:\n{example}\n"
            f"Stop there: the result follows after `#{definitions[0].name}_result:`. Then think on.\n\n"
            f"{describe_tools(definitions)}"
        )


def _render(event: ToolEvent) -> str:
    name, text = event.call.tool_name or "call", event.call.result or ""
    if event.outcome is ToolOutcome.OK:
        text = as_one_result(text, _MARKER)
        return f"#{name}_result:\n{text}\n\n" if text else f"#{name}_result:\n\n"
    return f"#{name}_error: {' '.join(text.split())}\n\n"


class InThoughtScanner(StoppingScanner):
    """Finds `#call`s. After a call's closing brace, the rest of the piece is still read and may contain another call."""

    def __init__(self, think_tags: tuple[str, str], *, calls_everywhere: bool, in_thought: bool) -> None:
        self._calls_everywhere = calls_everywhere
        super().__init__(think_tags, in_thought=in_thought)

    def _end_text(self) -> None:
        self._last = ""
        """The last piece or character that is not empty."""
        self._quoting = QuotingTracker()
        self._clear_call()

    def _clear_call(self) -> None:
        super()._clear_call()
        self._stage = _Stage.NONE
        self._name: list[str] = []

    def _skip(self, piece: str) -> str:
        if self._stage is _Stage.OBJECT:
            return self._in_object(piece)
        if self._stage is not _Stage.NONE or not _PROSE.fullmatch(piece) or not self._quoting.skip(piece):
            return piece
        self._last = piece or self._last
        return ""

    def _step(self, character: str) -> None:
        before, self._last = self._last[-1:], character
        if self._thought.feed(character):
            self._end_text()
            return
        if self._stage is _Stage.OBJECT:
            self._in_object(character)
            return
        self._quoting.feed(character)
        if self._stage is not _Stage.NONE:
            self._in_head(character)
        if self._stage is _Stage.NONE and character == "#" and not self._quoting.is_quoted and self._may_begin(before):
            self._stage = _Stage.KEYWORD
            self._raw.append(character)

    def _may_begin(self, before: str) -> bool:
        follows_word = before.isalnum() or before in ("_", "#")
        return (self._thought.in_thought or self._calls_everywhere) and not follows_word

    def _in_head(self, character: str) -> None:
        """Between `#` and `{`: enters the next stage, or none if the character does not fit."""
        stage, is_blank = self._stage, character in _BLANKS
        if stage is _Stage.KEYWORD:
            read = len(self._raw)
            if read < len(_KEYWORD) and character == _KEYWORD[read]:
                following = _Stage.KEYWORD
            else:
                following = _Stage.BEFORE_NAME if read == len(_KEYWORD) and is_blank else _Stage.NONE
        elif stage is _Stage.BEFORE_NAME:
            is_letter = character == "_" or (character.isascii() and character.isalpha())
            following = stage if is_blank else _Stage.NAME if is_letter else _Stage.NONE
        elif stage is _Stage.NAME and (character.isalnum() or character in "_.-"):
            following = stage
        else:
            following = _Stage.BEFORE_OBJECT if is_blank else _Stage.OBJECT if character == "{" else _Stage.NONE
        self._enter(following, character)

    def _enter(self, stage: _Stage, character: str) -> None:
        if stage is _Stage.NONE:
            self._clear_call()
            return
        self._stage = stage
        if stage is _Stage.NAME:
            self._name.append(character)
        if stage is _Stage.OBJECT:
            self._in_object(character)
        else:
            self._raw.append(character)

    def _end_call(self, parameters: Mapping[str, Any], error: str | None) -> None:
        name, raw_text, self._last = "".join(self._name), "".join(self._raw), "}"
        self._finished.append(
            ParsedAction(tool_name=name, parameters=parameters, raw_text=raw_text, success=error is None, error=error)
        )
        self._clear_call()
