"""Call formats: how a model writes tool calls and how results are written back. One file per format."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from midthought.tools.call_formats.instructions import describe_tools, example_parameters
from midthought.tools.call_formats.thought_tags import THINK_CLOSE, THINK_OPEN, begins_in_thought, split_thoughts
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent, ToolOutcome


class Scanner(Protocol):
    """Finds the calls in one episode's sampled text, which comes in pieces of any size."""

    def feed(self, piece: str) -> bool:
        """Reads the next piece. True if generation should stop after it: a call ended and the call format `stops_at_call`."""
        ...

    def take(self) -> list[ParsedAction]:
        """Returns the calls that ended since the last `take`, malformed ones (`success` False) included."""
        ...

    def resume(self) -> None:
        """Discards an unfinished call: text of another origin (a result, a reply) now follows it in the context."""
        ...


class ToolCallFormat(ABC):
    """One way of writing calls and results.

    The defaults are for a chat format, which defines `calls_in`: the policy finishes its turn, all calls of the turn are run,
    and every result is a chat message with the role `tool`. A format that `stops_at_call` defines `scanner` instead: sampling
    stops at the end of a call, and the result is written into the running text.

    Args:
        think_open: what opens a thought.
        think_close: what closes it.
    """

    name: str
    stops_at_call = False

    def __init__(self, think_open: str = THINK_OPEN, think_close: str = THINK_CLOSE) -> None:
        self.think_tags = (think_open, think_close)

    def __str__(self) -> str:
        """Returns the name and an example of a call."""
        return f"{self.name}: {self.render_call('NAME', {'ARGUMENT': 'VALUE'})}"

    def scanner(self, *, in_thought: bool) -> Scanner:
        """Returns a new scanner; `in_thought` if the prompt already opened the thought."""
        return TurnScanner(functools.partial(self.read, in_thought=in_thought))

    def read(self, text: str, *, in_thought: bool) -> list[ParsedAction]:
        """Returns the calls of a whole turn's text; `in_thought` if it begins in a thought. Nothing in a thought is a call."""
        parts = split_thoughts(text, self.think_tags, in_thought=in_thought)
        return [call for part, is_thought in parts if not is_thought for call in self.calls_in(part)]

    def calls_in(self, text: str) -> list[ParsedAction]:
        """Returns the calls in a text without thoughts. A think tag before or after it ends an unfinished call."""
        raise NotImplementedError

    def parse_all(self, text: str, *, in_thought: bool | None = None) -> list[ParsedAction]:
        """Returns every finished call of a whole turn's text, in order, malformed ones included.

        `in_thought` None: inferred from the text (`begins_in_thought`).
        """
        if in_thought is None:
            in_thought = begins_in_thought(text, self.think_tags)
        scanner = self.scanner(in_thought=in_thought)
        scanner.feed(text)
        return scanner.take()

    @abstractmethod
    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it. Tags inside an argument are escaped."""

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """Returns the text that follows the calls if the format `stops_at_call`; otherwise the content of the chat message
        for one event (then it is called once per event), with the prefix `error: ` if the call failed."""
        return "\n".join(
            ("" if event.outcome is ToolOutcome.OK else "error: ") + (event.call.result or "") for event in events
        )

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Returns the system prompt's description of the tools and of the syntax of a call; empty without tools."""
        if not definitions:
            return ""
        return self.explain(self.render_call(definitions[0].name, example_parameters(definitions[0])), definitions)

    def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
        """Returns the instructions for one or more tools; `example` is a call of the first."""
        return f"To call a tool, write this:\n{example}\n\n{describe_tools(definitions)}"


class TurnScanner:
    """Collects a turn's text and reads its calls when the turn has ended. Never asks to stop."""

    def __init__(self, read: Callable[[str], list[ParsedAction]]) -> None:
        self._read = read
        self._pieces: list[str] = []

    def feed(self, piece: str) -> bool:
        """Collects the next piece."""
        self._pieces.append(piece)
        return False

    def take(self) -> list[ParsedAction]:
        """Returns the calls in the text since the last `take`."""
        text, self._pieces = "".join(self._pieces), []
        return self._read(text)

    def resume(self) -> None:
        """Discards the collected text: other text now follows it in the context."""
        self._pieces = []
