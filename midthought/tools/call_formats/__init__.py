"""Call formats: how a model writes tool calls and how results are written back. One file per format."""

from __future__ import annotations

import functools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from midthought.tools.definition import ToolDefinition, ToolParameter
from midthought.types import ParsedAction, ToolEvent, ToolOutcome
from midthought.types.turn import THINK_TAGS

THINK_OPEN, THINK_CLOSE = THINK_TAGS
_EXAMPLES: dict[str, Any] = {
    "string": "...",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
}


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


# -- thoughts: a tag counts everywhere, also in quotes and in code -----------------------------------------------


def split_thoughts(text: str, tags: tuple[str, str], *, in_thought: bool) -> Iterator[tuple[str, bool]]:
    """Yields the parts of a text between think tags, and whether each is a thought; `in_thought`: whether the first one is."""
    for part in re.split(f"({'|'.join(map(re.escape, tags))})", text):
        if part in tags:
            in_thought = part == tags[0]
        else:
            yield part, in_thought


def begins_in_thought(text: str, tags: tuple[str, str]) -> bool:
    """Returns whether the prompt must have opened the thought: the first tag of the turn's text closes one."""
    opening, closing = (text.find(tag) for tag in tags)
    return closing >= 0 and not 0 <= opening < closing


# -- descriptions of tools for a system prompt -------------------------------------------------------------------


def describe_tools(definitions: Sequence[ToolDefinition]) -> str:
    """Returns the tools and their parameters, one per line, after the heading "Tools:"."""
    lines = ["Tools:"]
    for definition in definitions:
        lines.append(f"- {definition.name}: {definition.description}")
        lines += [f"  - {_describe(parameter)}" for parameter in definition.parameters]
    return "\n".join(lines)


def example_parameters(definition: ToolDefinition) -> dict[str, Any]:
    """Returns arguments for an example call: every required parameter with a value of its type."""
    return {parameter.name: _example(parameter) for parameter in definition.parameters if parameter.required}


def _describe(parameter: ToolParameter) -> str:
    schema = parameter.json_schema()
    plain = {key: schema.pop(key, None) for key in ("type", "description", "enum", "default")}
    notes = [_json({"type": plain["type"], **schema} if plain["type"] else schema) if schema else parameter.type]
    if not parameter.required:
        notes.append("optional")
    if plain["enum"]:
        notes.append(f"one of {', '.join(map(_json, plain['enum']))}")
    if plain["default"] is not None:
        notes.append(f"default {_json(plain['default'])}")
    return f"{parameter.name} ({', '.join(notes)}): {parameter.description}"


def _example(parameter: ToolParameter) -> Any:
    if choices := parameter.json_schema().get("enum"):
        return choices[0]
    return _EXAMPLES[parameter.type] if parameter.default is None else parameter.default


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
