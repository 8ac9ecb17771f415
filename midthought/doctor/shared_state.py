"""What tools keep between their calls: attributes, and the variables that their functions use. Nothing is called or changed."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Collection
from typing import Any

from midthought.tools.registry import ToolRegistry


def tool_states(registry: ToolRegistry) -> dict[str, str]:
    """Returns a text by tool that changes with the variables that the tool keeps."""
    return {each.name: _state(registry.get(each.name), 3) for each in registry.definitions()}


def _state(value: Any, depth: int) -> str:
    """Returns sizes and short texts of plain values; objects and functions are followed to this depth."""
    if value is None or isinstance(value, int | float | str | bytes):
        return reprlib.repr(value)
    try:
        if isinstance(value, Collection):
            return f"{len(value)} {reprlib.repr(value)}"
        if not depth or inspect.ismodule(value) or inspect.isclass(value):
            return ""
        if inspect.isfunction(value):
            used = inspect.getclosurevars(value)
            members = {**used.globals, **used.nonlocals, "defaults": value.__defaults__}
        else:
            members = {**vars(type(value)), **vars(value)}
    except Exception:  # of the user's classes
        return ""
    return "; ".join(f"{name}={_state(each, depth - 1)}" for name, each in members.items() if name[:2] != "__")
