"""Loads objects by `module:name`, and optional packages."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from midthought.errors import MissingExtraError, SettingsError, near_names


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


def load_from_here(reference: str) -> Any:
    """Does the same as `load`. The working directory is searched, too."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return load(reference)


def optional(module: str, extra: str) -> Any:
    """Returns a module of a package that only an extra installs. Raises `MissingExtraError`, which names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(_package(module), extra) from None


def require_installed(extra: str, *modules: str) -> None:
    """Raises `MissingExtraError` unless the modules that an extra installs are there. Imports none of them."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(_package(module), extra)


def _package(module: str) -> str:
    return module.partition(".")[0].replace("_", "-")
