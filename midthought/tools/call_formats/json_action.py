"""Calls as JSON objects anywhere in a chat turn: `{"tool": "NAME", "parameters": {…}}`.

Knows nothing of tokens (text comes in pieces, however it was split) nor of which tools there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midthought.tools.call_formats.call_form import CallForm, result_words
from midthought.tools.call_formats.instructions import describe_tools, example_parameters
from midthought.tools.call_formats.thought_tags import THINK_CLOSE, THINK_OPEN, ThoughtTracker, begins_in_thought
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent

FORM = CallForm("tool", "parameters")
_KEYS = ('"tool"', "'tool'", "tool")
"""How the key may be written. What is no JSON is found too, so that the model can be told."""


class JSONFormat:
    """`{"tool": "NAME", "parameters": {…}}` in a chat turn; all calls of the turn are run when it has ended.

    - An object with the key `tool` is a call wherever it stands: in running text, in a code fence or span, in a list,
      inside another object. Inside the braces of a call nothing is: its arguments are data. An object without that key
      is no call, nor is one in a string.
    - The call ends with the brace that balances it, whether or not the JSON can be read. Braces around it that never
      close do not matter.
    - A thought is not an act: nothing within `<think>…</think>` is a call. A think tag counts wherever it stands; one
      inside a call's braces makes that call void.
    - How the object is read: `CallForm`.
    """

    name = "json"
    fence_may_hold_call = True
    stops_at_call = False

    def __init__(self, think_open: str = THINK_OPEN, think_close: str = THINK_CLOSE) -> None:
        self.think_tags = (think_open, think_close)

    def scanner(self, *, in_thought: bool) -> JSONScanner:
        """A fresh scanner; `in_thought` where the prompt already opened the thought."""
        return JSONScanner(self, in_thought=in_thought)

    def parse_all(self, text: str, *, in_thought: bool | None = None) -> list[ParsedAction]:
        """Every finished call of a turn's text, malformed ones included. `in_thought` None: as its first tag shows."""
        if in_thought is None:
            in_thought = begins_in_thought(text, self.think_tags)
        scanner = self.scanner(in_thought=in_thought)
        scanner.feed(text)
        return scanner.take()

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """A call as the policy should write it. A think tag in an argument is escaped."""
        return FORM.write(tool_name, parameters, self.think_tags)

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """The tool's words; `error: …` where it failed."""
        return result_words(events)

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """The tools and the form of a call, with an example; empty without tools."""
        if not definitions:
            return ""
        example = self.render_call(definitions[0].name, example_parameters(definitions[0]))
        return (
            "You can call tools. To call one, write a JSON object with its name and its arguments, like this:\n"
            f"{example}\n"
            "You may call several in one answer. The results come in the next messages. When you need no tool, answer "
            f"without such an object.\n\n{describe_tools(definitions)}"
        )


class JSONScanner:
    """Follows one turn's text; amortised constant time per character.

    Calls inside braces that are still open (prose may leave one open) wait until these close, or the turn ends: the
    outer object may turn out to be the call.
    """

    def __init__(self, call_format: JSONFormat, *, in_thought: bool) -> None:
        self._thought = ThoughtTracker(call_format.think_tags, in_thought=in_thought)
        self._finished: list[ParsedAction] = []
        self._begin_text()

    def _begin_text(self) -> None:
        self._text: list[str] = []
        """Everything since the outermost open brace."""
        self._open: list[int] = []
        """Where in it the open braces stand."""
        self._call_depth = 0
        """How many braces were open when the key `tool` was read; 0 outside of calls."""
        self._calls: list[tuple[int, int]] = []
        """Where in it calls stand."""
        self._key: str | None = None
        """What stands where a key is expected; None where none is, or where it is another."""
        self._in_string = False
        self._is_escaped = False

    def feed(self, piece: str) -> bool:
        """Take the next piece; never a reason to stop."""
        if self._thought.may_skip(piece) and (self._thought.in_thought or not (self._open or "{" in piece)):
            return False
        for character in piece:
            self._step(character)
        return False

    def take(self) -> list[ParsedAction]:
        """The calls that ended since the last `take`."""
        self._read_calls()
        taken, self._finished = self._finished, []
        return taken

    def resume(self) -> None:
        """A result or reply now stands in the context: braces left open before it are void; the thought goes on."""
        self._thought.forget()
        self._end_text()

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
            # No JSON string holds a line end: outside of calls, the quote was prose.
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
        self._finished += [FORM.read_object("".join(self._text[start:end])) for start, end in self._calls]
        self._calls.clear()
