"""Things of a recipe by name, `module:name`: how files of a bundle say what verl's workers are to make."""

from __future__ import annotations

import importlib
from typing import Any

from midthought.errors import SettingsError, near_names


def load(reference: str) -> Any:
    """What `module:name` names. SettingsError where there is no such module or name."""
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise SettingsError(f"{reference!r} names nothing; write module:name, for example my_tools:Look")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks something itself
        raise SettingsError(f"{reference!r}: there is no module {error.name!r} on this machine") from None
    try:
        return getattr(module, name)
    except AttributeError:
        known = [known for known in vars(module) if not known.startswith("_")]
        raise SettingsError(f"{reference!r}: {module_name} has no {name!r}. {near_names(name, known)}") from None
