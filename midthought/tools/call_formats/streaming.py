"""What the call formats share: reading a turn when it has ended, and a scanner that stops at calls. Both skip thoughts.

Does not depend on how a particular format marks its calls.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midthought.tools.call_formats import Scanner
from midthought.tools.call_formats.instructions import example_parameters
from midthought.tools.call_formats.json_object import BadObjectError, ObjectScanner, load_object
from midthought.tools.call_formats.thought_tags import (
    THINK_CLOSE,
    THINK_OPEN,
    ThoughtTracker,
    begins_in_thought,
    outside_thoughts,
    plain_text,
)
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent, ToolOutcome


class StreamingCallFormat(ABC):
    """A `ToolCallFormat` with a scanner. A format defines `name`, `scanner`, `render_call` and `explain`.

    The defaults are for a chat format: all calls of a turn are run when the turn has ended, and every result is a
    message of its own.
    """

    name: str
    fence_may_hold_call = True
    stops_at_call = False

    def __init__(self, think_open: str = THINK_OPEN, think_close: str = THINK_CLOSE) -> None:
        self.think_tags = (think_open, think_close)

    def __str__(self) -> str:
        """Returns the name and an example of a call."""
        return f"{self.name}: {self.render_call('NAME', {'ARGUMENT': 'VALUE'})}"

    @abstractmethod
    def scanner(self, *, in_thought: bool) -> Scanner:
        """Returns a new scanner; `in_thought` if the prompt already opened the thought."""

    @abstractmethod
    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it. Tags inside an argument are escaped."""

    def parse_all(self, text: str, *, in_thought: bool | None = None) -> list[ParsedAction]:
        """Returns every finished call of a turn's text, malformed ones included.

        `in_thought` None: inferred from the text (`begins_in_thought`).
        """
        if in_thought is None:
            in_thought = begins_in_thought(text, self.think_tags)
        scanner = self.scanner(in_thought=in_thought)
        scanner.feed(text)
        return scanner.take()

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """Returns the text of the results, each with the prefix `error: ` if the call failed."""
        return result_text(events)

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Returns the tools and the syntax of a call, with an example; empty without tools."""
        if not definitions:
            return ""
        return self.explain(self.render_call(definitions[0].name, example_parameters(definitions[0])), definitions)

    @abstractmethod
    def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
        """Returns the instructions for one or more tools; `example` is a call of the first."""


class ChatCallFormat(StreamingCallFormat):
    """A format whose calls are read when the turn has ended. A subclass defines `calls_in`; nothing in a thought is a call."""

    def scanner(self, *, in_thought: bool) -> TurnScanner:
        """Returns a new scanner; `in_thought` if the prompt already opened the thought."""
        return TurnScanner(functools.partial(self._read, in_thought=in_thought))

    def _read(self, text: str, in_thought: bool) -> list[ParsedAction]:
        parts = outside_thoughts(text, self.think_tags, in_thought=in_thought)
        return [call for part in parts for call in self.calls_in(part)]

    @abstractmethod
    def calls_in(self, text: str) -> list[ParsedAction]:
        """Returns the calls in a text without thoughts. A think tag before or after it ends an unfinished call."""


class TurnScanner:
    """Collects a turn's text and reads its calls when the turn has ended. Never asks to stop."""

    def __init__(self, read: Callable[[str], list[ParsedAction]]) -> None:
        self._read = read
        self._pieces: list[str] = []

    def feed(self, piece: str) -> bool:
        """Collects the next piece. Never asks to stop."""
        self._pieces.append(piece)
        return False

    def take(self) -> list[ParsedAction]:
        """Returns the calls in the text since the last `take`."""
        text, self._pieces = "".join(self._pieces), []
        return self._read(text)

    def resume(self) -> None:
        """Discards the collected text: other text now follows it in the context."""
        self._pieces = []


class StoppingScanner(ABC):
    """Follows one turn's text and asks to stop after each call, which ends with the closing brace of its JSON object.

    Takes amortized constant time per character. A piece is read to its end even if a call ends inside it, so the way the text is
    split changes nothing. `marks` are the characters other than tags that can change its state in running text.
    """

    def __init__(self, think_tags: tuple[str, str], marks: str, *, in_thought: bool) -> None:
        self._thought = ThoughtTracker(think_tags, in_thought=in_thought)
        self._finished: list[ParsedAction] = []
        self._is_prose = plain_text(marks, think_tags)
        self._is_at_rest = False
        """In prose at a position where further prose changes no state."""
        self._last = ""
        """The last piece or character that is not empty."""
        self._clear_call()

    def feed(self, piece: str) -> bool:
        """Reads the next piece; True if a call ended inside it."""
        if self._is_at_rest and self._is_prose(piece):
            self._last = piece or self._last
            return False
        num_finished = len(self._finished)
        for character in self._skip(piece) if self._thought.may_skip(piece) else piece:
            self._step(character)
        return len(self._finished) > num_finished

    def take(self) -> list[ParsedAction]:
        """Returns the calls that ended since the last `take`."""
        taken, self._finished = self._finished, []
        return taken

    def resume(self) -> None:
        """Discards an unfinished call: other text now follows it in the context. An open thought stays open."""
        self._thought.forget()
        self._end_text()

    def _clear_call(self) -> None:
        self._raw: list[str] = []
        """The text of the call so far."""
        self._object: list[str] = []
        self._object_scanner = ObjectScanner()

    @abstractmethod
    def _end_text(self) -> None:
        """Ends the scanned text because a think tag or other text follows; an unfinished call is discarded."""

    @abstractmethod
    def _step(self, character: str) -> None:
        """Reads one character."""

    @abstractmethod
    def _skip(self, piece: str) -> str:
        """Reads as much as possible of a piece without think tags at once; returns the rest for `_step`."""

    def _in_object(self, text: str) -> str:
        """Reads up to the brace that closes the object; returns the text after it."""
        length = self._object_scanner.feed(text)
        self._last = text[:length] if length else text
        self._raw.append(self._last)
        self._object.append(self._last)
        if not length:
            return ""
        try:
            self._end_call(load_object("".join(self._object)), None)
        except BadObjectError as bad:
            self._end_call({}, str(bad))
        return text[length:]

    @abstractmethod
    def _end_call(self, parameters: Mapping[str, Any], error: str | None) -> None:
        """Records the call whose object just ended."""


def result_text(events: Sequence[ToolEvent]) -> str:
    """Returns the tools' results, one after the other, each with the prefix `error: ` if the call failed."""
    return "\n".join(
        ("" if event.outcome is ToolOutcome.OK else "error: ") + (event.call.result or "") for event in events
    )


def as_one_result(text: str, marker: re.Pattern[str]) -> str:
    """Returns the text without empty lines, so that the first empty line after it marks its end.

    A line that begins with `marker` would look like a call or like another result: `> ` is written in front of it.
    """
    lines = (line.rstrip() for line in text.splitlines() if line.strip())
    return "\n".join(f"> {line}" if marker.match(line) else line for line in lines)
