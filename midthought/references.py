"""Loads objects by `module:name`."""

from __future__ import annotations

import importlib
from typing import Any

from midthought.errors import SettingsError, near_names


def load(reference: str) -> Any:
    """Returns the object. Raises `SettingsError` if the module or the name does not exist."""
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise SettingsError(f"{reference!r} is not a reference; write module:name, for example my_tools:Look")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its own imports is missing
        raise SettingsError(f"{reference!r}: there is no module {error.name!r} on this machine") from None
    try:
        return getattr(module, name)
    except AttributeError:
        known = [known for known in vars(module) if not known.startswith("_")]
        raise SettingsError(f"{reference!r}: {module_name} has no {name!r}. {near_names(name, known)}") from None
