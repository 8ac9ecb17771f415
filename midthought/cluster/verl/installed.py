"""Finds the installed verl, writes overrides in Hydra's syntax, checks them against its configuration, and runs it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.errors import MissingExtraError, SettingsError

_PLAIN = re.compile(r"[A-Za-z_][\w/-]*(\.[\w/-]+)*", re.ASCII)
_NOT_TEXT = ("null", "true", "false", "nan", "inf")


def has_verl() -> bool:
    """Whether this interpreter can import verl."""
    return importlib.util.find_spec("verl") is not None


def require_verl() -> None:
    """Raises `MissingExtraError` if this interpreter has no verl."""
    if not has_verl():
        raise MissingExtraError("verl", "verl")


def compose(words: Sequence[str], name: str = "ppo_trainer") -> Any:
    """Returns the whole configuration of one of verl's trainers (a DictConfig) with these overrides.

    Raises `SettingsError` for an unknown key or an invalid value.
    """
    from hydra import compose as compose_config
    from hydra import initialize_config_module
    from hydra.errors import HydraException

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose_config(name, overrides=list(words))
    except HydraException as error:
        raise SettingsError(f"verl does not accept the settings: {' '.join(str(error).split())}") from None


def hydra_override(key: str, value: Any) -> str:
    """Returns `key=value` in Hydra's syntax."""
    return f"{key}={_hydra_value(value)}"


def _hydra_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_hydra_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_hydra_value(each)}" for name, each in value.items()) + "}"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    escaped = re.sub(r"(\\*)(\'|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def launch(script: Path) -> int:
    """Runs a bundle's script with this interpreter. Returns its exit code."""
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(["bash", str(script)], env=environment, check=False).returncode  # noqa: S607  # bash of PATH
