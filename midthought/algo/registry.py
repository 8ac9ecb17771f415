"""A registry of functions by name: a decorator adds an estimator or a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from midthought.errors import near_names

Function = TypeVar("Function", bound=Callable[..., Any])


class Registry(dict[str, Function]):
    """Functions of one kind by name. A user's function can be registered again (a notebook cell that is rerun)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        """The kind in error messages: `advantage estimator`."""

    def add(self, name: str, function: Function) -> None:
        """Raises TypeError if `name` is not a string, ValueError if it is empty or the name of a built-in function."""
        if not isinstance(name, str):
            raise TypeError(f"{self.kind}: the decorator takes a name, as in @…('name'), not {type(name).__name__}")
        if not name.strip():
            raise ValueError(f"{self.kind}: the name is empty: {name!r}")
        known = self.get(name)
        if known is not None and _module(known).startswith("midthought.algo.") and _module(known) != _module(function):
            raise ValueError(f"the {self.kind} {name!r} is built in; choose another name")
        self[name] = function

    def find(self, name: str) -> Function:
        """Returns the function of this name. Raises ValueError with similar names if there is none."""
        if name not in self:
            raise ValueError(f"unknown {self.kind} {str(name)!r}. {near_names(str(name), self)}")
        return self[name]


def _module(function: Callable[..., Any]) -> str:
    """Returns the module that defines a function; empty if unknown (code that `exec` ran)."""
    return getattr(function, "__module__", None) or ""
