"""Calls as JSON objects anywhere in a chat turn: `{"tool": "NAME", "parameters": {…}}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats.call_object import CallObject
from midthought.tools.call_formats.instructions import describe_tools
from midthought.tools.call_formats.streaming import StreamingCallFormat, StreamingScanner
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction

CALL_OBJECT = CallObject("tool", "parameters")
_KEYS = ('"tool"', "'tool'", "tool")
"""Spellings of the key. Those that are not JSON are found, too, so that the model can be given an error."""


class JSONFormat(StreamingCallFormat):
    """`{"tool": "NAME", "parameters": {…}}` in a chat turn; all calls of the turn are run when it has ended.

    - An object with the key `tool` is a call anywhere in the text: in prose, in a code fence or span, in a list, inside
      another object. Nothing inside the braces of a call is another call: its arguments are data. An object without that
      key is no call, and neither is an object inside a string.
    - The call ends with its closing brace, whether or not the JSON can be read. Unclosed braces around it do not matter.
    - Nothing within `<think>…</think>` is a call. A think tag counts everywhere; inside a call's braces it discards the
      call.
    - How the object is read: `CallObject`.
    """

    name = "json"

    def scanner(self, *, in_thought: bool) -> JSONScanner:
        """Returns a new scanner; `in_thought` if the prompt already opened the thought."""
        return JSONScanner(self.think_tags, in_thought=in_thought)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it. A think tag inside an argument is escaped."""
        return CALL_OBJECT.write(tool_name, parameters, self.think_tags)

    def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
        return (
            "You can call tools. To call one, write a JSON object with its name and its arguments, like this:\n"
            f"{example}\n"
            "You may call several in one answer. The results come in the next messages. When you need no tool, answer "
            f"without such an object.\n\n{describe_tools(definitions)}"
        )


class JSONScanner(StreamingScanner):
    """Finds objects with the key `tool`.

    A call inside braces that are still open (prose may leave one open) is recorded when these close or the turn ends:
    the outer object may turn out to be the call.
    """

    def __init__(self, think_tags: tuple[str, str], *, in_thought: bool) -> None:
        super().__init__(think_tags, in_thought=in_thought)
        self._begin_text()

    def _begin_text(self) -> None:
        self._text: list[str] = []
        """The text since the outermost open brace."""
        self._open: list[int] = []
        """Positions of the open braces in it."""
        self._call_depth = 0
        """Number of open braces when the key `tool` was read; 0 outside of calls."""
        self._calls: list[tuple[int, int]] = []
        """Start and end of the calls in it."""
        self._key: str | None = None
        """The key so far; None if no key is expected here or it is another key."""
        self._in_string = False
        self._is_escaped = False

    def take(self) -> list[ParsedAction]:
        """Returns the calls that ended since the last `take`."""
        self._read_calls()
        return super().take()

    def _skip(self, piece: str) -> str:
        return "" if self._thought.in_thought or not (self._open or "{" in piece) else piece

    def _step(self, character: str) -> None:
        if self._thought.feed(character):
            self._end_text()
        elif not self._thought.in_thought and (self._open or character == "{"):
            self._text.append(character)
            if self._in_string:
                self._in_quotes(character)
            else:
                self._in_braces(character)

    def _in_quotes(self, character: str) -> None:
        self._add_to_key(character)
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"' or (character == "\n" and not self._call_depth):
            # A JSON string contains no line end: outside of calls, the quote was prose.
            self._in_string = False

    def _in_braces(self, character: str) -> None:
        if character == "{":
            self._open.append(len(self._text) - 1)
        elif character == "}":
            self._close()
        elif character == ":":
            if self._key in _KEYS and not self._call_depth:
                self._call_depth = len(self._open)
            self._key = None
        elif character == '"':
            self._in_string = True
        if character in "{,":
            self._key = ""
        elif not character.isspace():
            self._add_to_key(character)

    def _add_to_key(self, character: str) -> None:
        if self._key is not None:
            self._key = self._key + character if len(self._key) < len(_KEYS[0]) else None

    def _close(self) -> None:
        start = self._open.pop()
        if self._call_depth > len(self._open):
            self._call_depth = 0
            while self._calls and self._calls[-1][0] > start:
                self._calls.pop()
            self._calls.append((start, len(self._text)))
        if not self._open:
            self._end_text()

    def _end_text(self) -> None:
        self._read_calls()
        self._begin_text()

    def _read_calls(self) -> None:
        self._finished += [CALL_OBJECT.read_object("".join(self._text[start:end])) for start, end in self._calls]
        self._calls.clear()
