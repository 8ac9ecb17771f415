"""The built-in call formats, by name for settings, and as the setup package's parsers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from midthought.errors import SettingsError, near_names
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.json_calls import FunctionCallingFormat, HermesFormat, JSONFormat
from midthought.tools.call_formats.react import ReActFormat

if TYPE_CHECKING:
    from midthought.tools.registry import ToolRegistry

DEFAULT_CALL_FORMAT = InThoughtFormat.name
"""Name of the call format that is used if none is given."""
_FORMATS = (InThoughtFormat, JSONFormat, ReActFormat, FunctionCallingFormat, HermesFormat)
BUILT_IN: dict[str, Callable[[], ToolCallFormat]] = {each.name: each for each in _FORMATS}


class _BuiltInParser(ToolCallFormat):
    """A built-in call format as the setup package calls it: with the tools, which it does not need."""

    def __init__(self, tool_registry: ToolRegistry | None = None) -> None:
        super().__init__()
        self.tool_registry = tool_registry

    @property
    def call_format(self) -> ToolCallFormat:
        """The call format by its name, without the tools."""
        return find_call_format(self.name)


class JSONActionParser(_BuiltInParser, JSONFormat):
    """`{"tool": "NAME", "parameters": {…}}` anywhere in the text; see `JSONFormat`."""


class ReActActionParser(_BuiltInParser, ReActFormat):
    """`Thought: … / Action: NAME / Action Input: {…}`; see `ReActFormat`."""


class FunctionCallingParser(_BuiltInParser, FunctionCallingFormat):
    """`<function_calls>{"tool_name": "NAME", "parameters": {…}}</function_calls>`; see `FunctionCallingFormat`."""


class HermesParser(_BuiltInParser, HermesFormat):
    """`<tool_call>{"name": "NAME", "arguments": {…}}</tool_call>`; see `HermesFormat`."""


class InThoughtParser(_BuiltInParser, InThoughtFormat):
    """`#call NAME {…}` in a text that begins inside a thought; see `InThoughtFormat`."""


# -- by name, for settings -------------------------------------------------------------------------------------


def call_format_names() -> list[str]:
    """Returns every name that `find_call_format` accepts."""
    return list(BUILT_IN)


def find_call_format(name: str) -> ToolCallFormat:
    """Returns a new call format of that name. Raises `SettingsError`, with similar names, if there is none."""
    if name not in BUILT_IN:
        remedy = "Give your own as an object: call_format=MyParser()"
        raise SettingsError(f"unknown call format {name!r}. {near_names(name, BUILT_IN)} {remedy}")
    return BUILT_IN[name]()
