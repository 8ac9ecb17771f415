"""Functions under names: how a user adds an estimator or a loss with one decorator. Knows nothing of what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from midthought.errors import near_names

Function = TypeVar("Function", bound=Callable[..., Any])


class Registry(Generic[Function]):
    """Functions of one kind by name. A name of the user's may be registered anew (a notebook's cell that is run again)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        """What the functions are, in messages: `advantage estimator`."""
        self._functions: dict[str, Function] = {}

    def add(self, name: str, function: Function) -> None:
        """Raises TypeError where `name` is no text, ValueError where it is empty or taken by this library."""
        if not isinstance(name, str):
            raise TypeError(f"{self.kind}: the decorator takes a name, as in @…('name'), not {type(name).__name__}")
        if not name.strip():
            raise ValueError(f"{self.kind}: the name is empty: {name!r}")
        known = self._functions.get(name)
        if known is not None and _room(known).startswith("midthought.algo.") and _room(known) != _room(function):
            raise ValueError(f"the {self.kind} {name!r} ships with this library; choose another name")
        self._functions[name] = function

    def find(self, name: str) -> Function:
        """The function of that name. Raises ValueError with the near names where there is none."""
        if name not in self._functions:
            raise ValueError(f"unknown {self.kind} {str(name)!r}. {near_names(str(name), self._functions)}")
        return self._functions[name]


def _room(function: Callable[..., Any]) -> str:
    """The module that a function was written in; empty where nobody knows (code that was run from a text)."""
    return getattr(function, "__module__", None) or ""
