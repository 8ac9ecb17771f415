"""A module with state of its own, for tests that register names."""

import importlib.util
from types import ModuleType
from typing import Any


def fresh_module(module: ModuleType) -> Any:
    """A second import of the module; the first one and its registered names stay as they are."""
    spec = importlib.util.find_spec(module.__name__)
    assert spec is not None and spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    return again
