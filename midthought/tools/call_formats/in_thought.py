"""Calls in mid-thought: `#call NAME {json}` anywhere in running text, ended by the object's closing brace.

Knows nothing of tokens (text comes in pieces, however it was split) nor of which tools there are.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from midthought.tools.call_formats.instructions import describe_tools, example_parameters
from midthought.tools.call_formats.json_object import BadObjectError, ObjectScanner, load_object, write_json
from midthought.tools.call_formats.quoting import QuotingTracker
from midthought.tools.call_formats.thought_tags import ThoughtTracker, plain_text
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent, ToolOutcome

_KEYWORD = "#call"
_BLANKS = " \t\r\n"

Layout = Literal["inside", "between"]


class _Stage(enum.Enum):
    """What of a call has been read."""

    NONE = enum.auto()
    KEYWORD = enum.auto()
    BEFORE_NAME = enum.auto()
    NAME = enum.auto()
    BEFORE_OBJECT = enum.auto()
    OBJECT = enum.auto()


class InThoughtFormat:
    """`#call NAME {json}`, with the result written back into the same thought.

    - `#call` may stand anywhere but directly after a word character or another `#`; blanks or line ends follow it.
      NAME is a letter or `_`, then letters, digits, `_`, `.` or `-`; blanks or line ends may follow. Then comes `{`, or
      it is no call. The call ends with the brace that balances it, whether or not the JSON can be read.
    - Quoted text holds no call: fenced code, a code span up to the end of its line, and a `#NAME_result:` or
      `#NAME_error:` that the policy wrote itself, up to a blank line (`quoting.py`).
    - Layout `inside`: calls stand within `<think>…</think>` only. `between`: the thought is closed before a call and
      opened anew after it, so calls count everywhere. A think tag counts wherever it stands; one inside a call's braces
      makes that call void.
    """

    name = "in_thought"
    fence_may_hold_call = False
    stops_at_call = True

    def __init__(self, layout: Layout = "inside", think_open: str = "<think>", think_close: str = "</think>") -> None:
        self.layout = layout
        self.think_open = think_open
        self.think_close = think_close

    def scanner(self, *, in_thought: bool) -> InThoughtScanner:
        """A fresh scanner; `in_thought` where the prompt already opened the thought."""
        return InThoughtScanner(self, in_thought=in_thought)

    def parse_all(self, text: str, *, in_thought: bool = True) -> list[ParsedAction]:
        """Every finished call of a text, malformed ones included."""
        scanner = self.scanner(in_thought=in_thought)
        scanner.feed(text)
        return scanner.take()

    def parse(self, text: str, *, in_thought: bool = True) -> ParsedAction:
        """The first finished call of a text; where there is none, `success` False and no name."""
        nothing = ParsedAction(tool_name=None, parameters={}, raw_text=text, success=False, error="no call found")
        return next(iter(self.parse_all(text, in_thought=in_thought)), nothing)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """A call as the policy should write it, for demonstrations. A think tag in an argument is escaped."""
        return f"{_KEYWORD} {tool_name} {write_json(dict(parameters), (self.think_open, self.think_close))}"

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        r"""What stands after the closing brace: `"\n#NAME_result:\n<text>\n\n"`, or `"\n#NAME_error: <text>\n\n"` on
        one line (`#call_error:` where the call had no name). Several follow each other without a further line.

        Empty lines of a result are left out, so that the first empty line is where the tool's words end.
        """
        return "".join(["\n", *(_render(event) for event in events)])

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """The tools and the form of a call, with an example; empty without tools."""
        if not definitions:
            return ""
        first = definitions[0]
        where = (
            f"Between {self.think_open} and {self.think_close}" if self.layout == "inside" else "Between two thoughts"
        )
        return (
            f"You can call tools while you think. {where}, write {_KEYWORD}, the tool's name and its arguments as a JSON "
            f"object, like this:\n{self.render_call(first.name, example_parameters(first))}\n"
            f"Stop there: the result follows after `#{first.name}_result:`. Then think on.\n\n"
            f"{describe_tools(definitions)}"
        )


def _render(event: ToolEvent) -> str:
    name, words = event.call.tool_name or "call", event.call.result or ""
    if event.outcome is ToolOutcome.OK:
        lines = [line.rstrip() for line in words.splitlines() if line.strip()]
        return "\n".join([f"#{name}_result:", *lines, "", ""])
    return f"#{name}_error: {' '.join(words.split())}\n\n"


class InThoughtScanner:
    """Follows one episode's sampled text; amortised constant time per character.

    A piece is read to its end even where a call ends in it, so that how the text was split changes nothing: what
    follows the brace in the same piece belongs to the record, and may even hold another call.
    """

    def __init__(self, call_format: InThoughtFormat, *, in_thought: bool) -> None:
        tags = (call_format.think_open, call_format.think_close)
        self._thought = ThoughtTracker(tags, in_thought=in_thought)
        self._is_prose = plain_text("\n`#", tags)
        self._calls_everywhere = call_format.layout == "between"
        self._finished: list[ParsedAction] = []
        self._reset()

    def _reset(self) -> None:
        self._thought.forget()
        self._is_at_rest = False
        """In prose, behind a line's first words: what is prose itself changes nothing."""
        self._last = ""
        """The last piece or character that is not empty."""
        self._quoting = QuotingTracker()
        self._begin_text()

    def _begin_text(self) -> None:
        self._stage = _Stage.NONE
        self._raw: list[str] = []
        self._name: list[str] = []
        self._object: list[str] = []
        self._object_scanner = ObjectScanner()

    def feed(self, piece: str) -> bool:
        """Take the next piece; True where a call ended inside it."""
        if self._is_at_rest and self._is_prose(piece):
            self._last = piece or self._last
            return False
        num_finished = len(self._finished)
        for character in self._skip(piece) if self._thought.may_skip(piece) else piece:
            self._step(character)
        return len(self._finished) > num_finished

    def _skip(self, piece: str) -> str:
        """Take at once what may be of a piece without tags; what is left of it is to be stepped over."""
        if self._stage is _Stage.OBJECT:
            return self._in_object(piece)
        if self._stage is not _Stage.NONE or not self._is_prose(piece) or not self._quoting.skip(piece):
            return piece
        self._is_at_rest, self._last = not self._quoting.line_is_blank, piece or self._last
        return ""

    def take(self) -> list[ParsedAction]:
        """The calls that ended since the last `take`."""
        taken, self._finished = self._finished, []
        return taken

    def resume(self) -> None:
        """A result or reply now stands in the context, ending in a line end: calls, code and quotes left open before it
        are void; only the thought goes on."""
        self._reset()

    def _step(self, character: str) -> None:
        self._is_at_rest = False
        before, self._last = self._last[-1:], character
        if self._thought.feed(character):
            self._reset()
            return
        if self._stage is _Stage.OBJECT:
            self._in_object(character)
            return
        is_quoted = self._quoting.feed(character)
        if self._stage is not _Stage.NONE:
            self._in_head(character)
        if self._stage is _Stage.NONE and character == "#" and not is_quoted and self._may_begin(before):
            self._stage = _Stage.KEYWORD
            self._raw.append(character)

    def _may_begin(self, before: str) -> bool:
        follows_word = before.isalnum() or before in ("_", "#")
        return (self._thought.in_thought or self._calls_everywhere) and not follows_word

    def _in_head(self, character: str) -> None:
        """Between `#` and `{`: go a stage on, or back to none where the character does not fit."""
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
            self._begin_text()
            return
        self._stage = stage
        if stage is _Stage.NAME:
            self._name.append(character)
        if stage is _Stage.OBJECT:
            self._in_object(character)
        else:
            self._raw.append(character)

    def _in_object(self, text: str) -> str:
        """Take a text up to the brace that closes the object; what follows it."""
        length = self._object_scanner.feed(text)
        taken = text[:length] if length else text
        self._last = taken
        self._raw.append(taken)
        self._object.append(taken)
        if not length:
            return ""
        name, raw_text = "".join(self._name), "".join(self._raw)
        parameters: dict[str, Any] = {}
        error = None
        try:
            parameters = load_object("".join(self._object))
        except BadObjectError as bad:
            error = str(bad)
        self._finished.append(
            ParsedAction(tool_name=name, parameters=parameters, raw_text=raw_text, success=error is None, error=error)
        )
        self._begin_text()
        return text[length:]
