"""call formats by name, for settings; a user's own is registered in one line."""

from __future__ import annotations

from collections.abc import Callable

from midthought.errors import SettingsError, near_names
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.function_calling import FunctionCallingFormat
from midthought.tools.call_formats.hermes import HermesFormat
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.json_action import JSONFormat
from midthought.tools.call_formats.react import ReActFormat

_OURS: dict[str, Callable[[], ToolCallFormat]] = {
    "in_thought": InThoughtFormat,
    "json": JSONFormat,
    "react": ReActFormat,
    "function_calling": FunctionCallingFormat,
    "hermes": HermesFormat,
}
_MAKERS = dict(_OURS)


def call_format_names() -> list[str]:
    """Every name that `find_call_format` knows: ours, then the registered ones."""
    return list(_MAKERS)


def find_call_format(name: str) -> ToolCallFormat:
    """A new call format of that name. SettingsError, with the near names, where there is none."""
    if name not in _MAKERS:
        raise SettingsError(f"unknown call format {name!r}. {near_names(name, _MAKERS)}")
    return _MAKERS[name]()


def register_call_format(name: str, make: Callable[[], ToolCallFormat]) -> None:
    """Let settings name your own: `register_call_format("angle", AngleFormat)`. Doing so again replaces it.

    A parser: `register_call_format("angle", lambda: AngleParser().call_format)`. SettingsError for a name of this library.
    """
    if name in _OURS:
        raise SettingsError(f"call format {name!r} is this library's own; register yours under another name")
    _MAKERS[name] = make
