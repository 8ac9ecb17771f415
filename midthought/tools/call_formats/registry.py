"""Call formats by name, for settings. A user registers another format in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from midthought.errors import SettingsError, near_names
from midthought.tools.call_formats import ToolCallFormat
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.json_action import JSONFormat
from midthought.tools.call_formats.react import ReActFormat
from midthought.tools.call_formats.tagged import FunctionCallingFormat, HermesFormat

if TYPE_CHECKING:
    from midthought.tools.parsers import ActionParser

DEFAULT_CALL_FORMAT = InThoughtFormat.name
"""Name of the call format that is used if none is given."""
BUILT_IN: dict[str, Callable[[], ToolCallFormat]] = {
    each.name: each for each in (InThoughtFormat, JSONFormat, ReActFormat, FunctionCallingFormat, HermesFormat)
}
_FACTORIES: dict[str, Callable[[], ToolCallFormat | ActionParser]] = dict(BUILT_IN)


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
