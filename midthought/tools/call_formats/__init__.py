"""Call formats: how a model writes tool calls and how results are written back. One file per format. Users extend `ActionParser`,
or `ToolCallFormat` if the loop shall stop at a call."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from midthought.tools.call_formats.json_object import write_json
from midthought.tools.definition import ToolDefinition, ToolParameter
from midthought.types import ParsedAction, ToolEvent, ToolOutcome
from midthought.types.turn import THINK_TAGS

if TYPE_CHECKING:
    from midthought.tools.registry import ToolRegistry

THINK_OPEN, THINK_CLOSE = THINK_TAGS
_EXAMPLES: dict[str, Any] = {"string": "...", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


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


class ActionParser:
    """Finds the calls in a model's output. Extend it: write `parse` or `parse_all`; the other one is derived from it.

    Examples:
        >>> class ShoutParser(ActionParser):
        ...     def parse_all(self, text: str) -> list[ParsedAction]:
        ...         words = [word for word in text.split() if word.startswith("!")]
        ...         return [ParsedAction(tool_name=word[1:], parameters={}, raw_text=word, success=True) for word in words]
        >>> ShoutParser().parse("Now !look around").tool_name
        'look'
    """

    tool_registry: ToolRegistry | None = None
    """The tools, if given, for a `parse` of your own. The built-in parsers do not need them: the executor checks the names."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        if cls.parse is ActionParser.parse and cls.parse_all is ActionParser.parse_all:
            raise TypeError(f"{cls.__name__} defines neither parse nor parse_all; define one of them")
        return super().__new__(cls)

    def __init__(self, tool_registry: ToolRegistry | None = None) -> None:
        """Stores the tools. A subclass with its own `__init__` need not call this."""
        self.tool_registry = tool_registry

    def parse(self, text: str) -> ParsedAction:
        """Returns the first call of a turn's text. If there is none: `success` False, no name, error "no call found"."""
        nothing = ParsedAction(tool_name=None, parameters={}, raw_text=text, success=False, error="no call found")
        return next(iter(self.parse_all(text)), nothing)

    def parse_all(self, text: str) -> list[ParsedAction]:
        """Returns every call of a turn's text, in order, malformed ones (`success` False) included.

        If only `parse` is defined, at most one: its result, unless it is None, or failed and has no tool name. Raises TypeError
        if it is something else.
        """
        action: Any = self.parse(text)
        if not isinstance(action, ParsedAction | None):
            remedy = "return ParsedAction(tool_name=…, …) or None"
            raise TypeError(f"{type(self).__name__}.parse returned {action!r:.80}; {remedy}")
        return [action] if action is not None and (action.success or action.tool_name is not None) else []

    @property
    def call_format(self) -> ToolCallFormat:
        """The parser as a call format for the rollout loop."""
        return ParsedTurnFormat(self)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it, for demonstrations. NotImplementedError unless you define it."""
        remedy = "define its render_call(tool_name, parameters)"
        raise NotImplementedError(f"{type(self).__name__} only reads calls; {remedy}")

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Returns the system prompt's list of the tools. Extend it with the syntax of a call that your parser reads."""
        return describe_tools(definitions) if definitions else ""


class ToolCallFormat(ActionParser):
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

    @property
    def call_format(self) -> ToolCallFormat:
        """The format itself."""
        return self

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

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """Returns the text that follows the calls if the format `stops_at_call`; otherwise the content of the chat message
        for one event (then it is called once per event), with the prefix `error: ` if the call failed."""
        texts = ((event.outcome is ToolOutcome.OK, event.call.result or "") for event in events)
        return "\n".join(text if is_ok else f"error: {text}" for is_ok, text in texts)

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


class ParsedTurnFormat(ToolCallFormat):
    """A parser as a call format for the rollout loop: collects the turn's text and parses it when the turn has ended.

    The parser gets the whole text, thoughts and fences included, and decides alone which parts are calls.
    """

    name = "parser"

    def __init__(self, parser: ActionParser) -> None:
        super().__init__()
        self.parser = parser

    def __str__(self) -> str:
        return f"parser: {type(self.parser).__name__}"

    def read(self, text: str, *, in_thought: bool) -> list[ParsedAction]:
        """Returns the calls that the parser finds."""
        return list(self.parser.parse_all(text))

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        return self.parser.render_call(tool_name, parameters)

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        return self.parser.instructions(definitions)

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """Returns the text of the results, one after the other."""
        return "\n".join(event.call.result or "" for event in events)


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
    notes = [write_json({"type": plain["type"], **schema} if plain["type"] else schema) if schema else parameter.type]
    if not parameter.required:
        notes.append("optional")
    if plain["enum"]:
        notes.append(f"one of {', '.join(map(write_json, plain['enum']))}")
    if plain["default"] is not None:
        notes.append(f"default {write_json(plain['default'])}")
    return f"{parameter.name} ({', '.join(notes)}): {parameter.description}"


def _example(parameter: ToolParameter) -> Any:
    if choices := parameter.json_schema().get("enum"):
        return choices[0]
    return _EXAMPLES[parameter.type] if parameter.default is None else parameter.default
