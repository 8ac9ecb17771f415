"""Parsers: a text in, the calls in it out. Users extend `ActionParser`; the others are the call formats' own parsers.

Knows nothing of tokens nor of which tools there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.function_calling import FunctionCallingFormat
from midthought.tools.call_formats.hermes import HermesFormat
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.instructions import describe_tools
from midthought.tools.call_formats.json_action import JSONFormat
from midthought.tools.call_formats.react import ReActFormat
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent


class ActionParser:
    """Reads calls out of what a model wrote. Extend it: write `parse` or `parse_all`, the other follows.

    >>> class ShoutParser(ActionParser):
    ...     def parse_all(self, text: str) -> list[ParsedAction]:
    ...         words = [word for word in text.split() if word.startswith("!")]
    ...         return [ParsedAction(tool_name=word[1:], parameters={}, raw_text=word, success=True) for word in words]
    >>> ShoutParser().parse("Now !look around").tool_name
    'look'
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        if cls.parse is ActionParser.parse and cls.parse_all is ActionParser.parse_all:
            raise TypeError(f"{cls.__name__} has neither parse nor parse_all of its own; extend ActionParser with one")
        return super().__new__(cls)

    def parse(self, text: str) -> ParsedAction:
        """The first call of a turn's text. Where there is none: `success` False, no name, error "no call found"."""
        return next(iter(self.parse_all(text)), no_call(text))

    def parse_all(self, text: str) -> list[ParsedAction]:
        """Every call of a turn's text, in order, malformed ones (`success` False) included.

        Where only `parse` is written, at most one: what it gives, unless it failed and names no tool.
        """
        action = self.parse(text)
        return [action] if action.success or action.tool_name is not None else []

    @property
    def call_format(self) -> ToolCallFormat:
        """What the rollout loop takes."""
        return ParsedTurnFormat(self)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """A call as the policy should write it, for demonstrations. NotImplementedError unless you write it."""
        raise NotImplementedError(
            f"{type(self).__name__} only reads calls; write its render_call(tool_name, parameters)"
        )

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """What the system prompt says of the tools: their list. Extend it with how your parser wants calls written."""
        return describe_tools(definitions) if definitions else ""


def no_call(text: str) -> ParsedAction:
    """What `parse` gives for a text without a call."""
    return ParsedAction(tool_name=None, parameters={}, raw_text=text, success=False, error="no call found")


class ParsedTurnFormat:
    """A parser as a call format for the rollout loop: the turn's text is collected and parsed when the turn has ended.

    The parser sees the whole text, thoughts and fences included, and decides alone what of it is a call.
    """

    name = "parser"
    fence_may_hold_call = True
    stops_at_call = False

    def __init__(self, parser: ActionParser) -> None:
        self.parser = parser

    def scanner(self, *, in_thought: bool) -> ParsedTurnScanner:
        """A fresh scanner; whether the prompt opened a thought is the same to it."""
        return ParsedTurnScanner(self.parser)

    def parse_all(self, text: str, *, in_thought: bool = False) -> list[ParsedAction]:
        """What the parser finds."""
        return self.parser.parse_all(text)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """As the parser writes it; NotImplementedError where it cannot."""
        return self.parser.render_call(tool_name, parameters)

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """The words of the results, one after the other."""
        return "\n".join(event.call.result or "" for event in events)

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """As the parser words it."""
        return self.parser.instructions(definitions)


class ParsedTurnScanner:
    """Collects one turn's text for a parser."""

    def __init__(self, parser: ActionParser) -> None:
        self._parser = parser
        self._pieces: list[str] = []

    def feed(self, piece: str) -> bool:
        """Take the next piece; never a reason to stop."""
        self._pieces.append(piece)
        return False

    def take(self) -> list[ParsedAction]:
        """The calls in all that was fed since the last `take`."""
        text, self._pieces = "".join(self._pieces), []
        return self._parser.parse_all(text)

    def resume(self) -> None:
        """A result or reply now stands in the context: what was not taken is void."""
        self._pieces = []


class _FormatParser(ActionParser):
    """A call format's own parser. `call_format` goes to the rollout loop as it is: it stops and streams."""

    def __init__(self, call_format: ToolCallFormat) -> None:
        self._call_format = call_format

    @property
    def call_format(self) -> ToolCallFormat:
        """The call format."""
        return self._call_format

    def parse_all(self, text: str) -> list[ParsedAction]:
        """Every finished call of a text, malformed ones included."""
        return self._call_format.parse_all(text)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """A call as the policy should write it."""
        return self._call_format.render_call(tool_name, parameters)

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """What the system prompt says of the tools and of how to call them."""
        return self._call_format.instructions(definitions)


class JSONActionParser(_FormatParser):
    """`{"tool": "NAME", "parameters": {…}}` anywhere in the text; see `JSONFormat`."""

    def __init__(self) -> None:
        super().__init__(JSONFormat())


class ReActActionParser(_FormatParser):
    """`Thought: … / Action: NAME / Action Input: {…}`; see `ReActFormat`."""

    def __init__(self) -> None:
        super().__init__(ReActFormat())


class FunctionCallingParser(_FormatParser):
    """`<function_calls>{"tool_name": "NAME", "parameters": {…}}</function_calls>`; see `FunctionCallingFormat`."""

    def __init__(self) -> None:
        super().__init__(FunctionCallingFormat())


class HermesParser(_FormatParser):
    """`<tool_call>{"name": "NAME", "arguments": {…}}</tool_call>`; see `HermesFormat`."""

    def __init__(self) -> None:
        super().__init__(HermesFormat())


class InThoughtParser(_FormatParser):
    """`#call NAME {…}` in a text that begins inside a thought; see `InThoughtFormat`."""

    def __init__(self) -> None:
        super().__init__(InThoughtFormat())
