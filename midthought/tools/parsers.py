"""Parsers, which find the calls in a text, and call formats by name. Users extend `ActionParser`; the other parsers read the
built-in call formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from midthought.errors import SettingsError, near_names
from midthought.tools.call_formats import ToolCallFormat, describe_tools
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.json_calls import FunctionCallingFormat, HermesFormat, JSONFormat
from midthought.tools.call_formats.react import ReActFormat
from midthought.tools.definition import ToolDefinition
from midthought.types import ParsedAction, ToolEvent

if TYPE_CHECKING:
    from midthought.tools.registry import ToolRegistry

DEFAULT_CALL_FORMAT = InThoughtFormat.name
"""Name of the call format that is used if none is given."""
BUILT_IN: dict[str, Callable[[], ToolCallFormat]] = {
    each.name: each for each in (InThoughtFormat, JSONFormat, ReActFormat, FunctionCallingFormat, HermesFormat)
}
_FACTORIES: dict[str, Callable[[], ToolCallFormat | ActionParser]] = dict(BUILT_IN)


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
            raise TypeError(
                f"{type(self).__name__}.parse returned {action!r:.80}; return ParsedAction(tool_name=…, …) or None"
            )
        return [action] if action is not None and (action.success or action.tool_name is not None) else []

    @property
    def call_format(self) -> ToolCallFormat:
        """The parser as a call format for the rollout loop."""
        return ParsedTurnFormat(self)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it, for demonstrations. NotImplementedError unless you define it."""
        raise NotImplementedError(
            f"{type(self).__name__} only reads calls; define its render_call(tool_name, parameters)"
        )

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Returns the system prompt's list of the tools. Extend it with the syntax of a call that your parser reads."""
        return describe_tools(definitions) if definitions else ""


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
        return self.parser.parse_all(text)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        return self.parser.render_call(tool_name, parameters)

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        return self.parser.instructions(definitions)

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        """Returns the text of the results, one after the other."""
        return "\n".join(event.call.result or "" for event in events)


class _FormatParser(ActionParser):
    """The parser of a built-in call format. The rollout loop gets the format itself, which streams and can stop at calls."""

    _format_class: ClassVar[type[ToolCallFormat]]

    def __init__(self, tool_registry: ToolRegistry | None = None) -> None:
        super().__init__(tool_registry)
        self._call_format = self._format_class()

    @property
    def call_format(self) -> ToolCallFormat:
        """The call format itself."""
        return self._call_format

    def parse_all(self, text: str) -> list[ParsedAction]:
        """Returns every finished call of a text, malformed ones included."""
        return self._call_format.parse_all(text)

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        """Returns a call as the policy should write it."""
        return self._call_format.render_call(tool_name, parameters)

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Returns the system prompt's description of the tools and of the syntax of a call."""
        return self._call_format.instructions(definitions)


class JSONActionParser(_FormatParser):
    """`{"tool": "NAME", "parameters": {…}}` anywhere in the text; see `JSONFormat`."""

    _format_class = JSONFormat


class ReActActionParser(_FormatParser):
    """`Thought: … / Action: NAME / Action Input: {…}`; see `ReActFormat`."""

    _format_class = ReActFormat


class FunctionCallingParser(_FormatParser):
    """`<function_calls>{"tool_name": "NAME", "parameters": {…}}</function_calls>`; see `FunctionCallingFormat`."""

    _format_class = FunctionCallingFormat


class HermesParser(_FormatParser):
    """`<tool_call>{"name": "NAME", "arguments": {…}}</tool_call>`; see `HermesFormat`."""

    _format_class = HermesFormat


class InThoughtParser(_FormatParser):
    """`#call NAME {…}` in a text that begins inside a thought; see `InThoughtFormat`."""

    _format_class = InThoughtFormat


# -- by name, for settings -------------------------------------------------------------------------------------


def call_format_names() -> list[str]:
    """Returns every name that `find_call_format` accepts: the built-in formats, then the registered ones."""
    return list(_FACTORIES)


def find_call_format(name: str) -> ToolCallFormat:
    """Returns a new call format of that name. Raises `SettingsError`, with similar names, if there is none, or if what was
    registered under the name makes no call format."""
    if name not in _FACTORIES:
        raise SettingsError(
            f"unknown call format {name!r}. {near_names(name, _FACTORIES)} Your own is available once its module is imported."
        )
    made: Any = _FACTORIES[name]()
    found: ToolCallFormat = getattr(made, "call_format", made)  # of an ActionParser
    if isinstance(found, type) or not hasattr(found, "scanner"):
        raise SettingsError(
            f"call format {name!r}: {made!r:.80} is registered; register an ActionParser or a call format"
        )
    return found


def register_call_format(name: str, make: Callable[[], ToolCallFormat | ActionParser]) -> None:
    """Gives your call format a name for `Trainer(call_format=…)`: `register_call_format("angle", AngleFormat)`. A second
    registration replaces the first.

    An `ActionParser` works, too: `register_call_format("angle", AngleParser)`. Raises `SettingsError` if the name is that of a
    built-in format.
    """
    if name in BUILT_IN:
        raise SettingsError(f"call format {name!r} is built in; register yours under another name")
    _FACTORIES[name] = make
