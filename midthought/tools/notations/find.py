"""Notations by name, for settings; a user's own is registered in one line."""

from __future__ import annotations

from collections.abc import Callable

from midthought.errors import SettingsError, near_names
from midthought.tools.notations import Notation
from midthought.tools.notations.function_calling import FunctionCallingNotation
from midthought.tools.notations.hermes import HermesNotation
from midthought.tools.notations.in_thought import InThoughtNotation
from midthought.tools.notations.json_action import JSONNotation
from midthought.tools.notations.react import ReActNotation

_OURS: dict[str, Callable[[], Notation]] = {
    "in_thought": InThoughtNotation,
    "json": JSONNotation,
    "react": ReActNotation,
    "function_calling": FunctionCallingNotation,
    "hermes": HermesNotation,
}
_MAKERS = dict(_OURS)


def notation_names() -> list[str]:
    """Every name that `find_notation` knows: ours, then the registered ones."""
    return list(_MAKERS)


def find_notation(name: str) -> Notation:
    """A new notation of that name. SettingsError, with the near names, where there is none."""
    if name not in _MAKERS:
        raise SettingsError(f"unknown notation {name!r}. {near_names(name, _MAKERS)}")
    return _MAKERS[name]()


def register_notation(name: str, make: Callable[[], Notation]) -> None:
    """Let settings name your own: `register_notation("angle", AngleNotation)`. Doing so again replaces it.

    A parser: `register_notation("angle", lambda: AngleParser().notation)`. SettingsError for a name of this library.
    """
    if name in _OURS:
        raise SettingsError(f"notation {name!r} is this library's own; register yours under another name")
    _MAKERS[name] = make
