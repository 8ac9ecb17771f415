"""Settings from outside: YAML files and `section.key=value` words as nested mappings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from midthought.errors import SettingsError


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file as nested mappings. Raises SettingsError where it is missing or not a mapping."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"settings file {path} is not there; check the path given to --config") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"settings file {path} cannot be read: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise SettingsError(
            f"settings file {path} holds a {type(values).__name__}, not sections; "
            "write for example 'training:\\n  seed: 1'"
        )
    return dict(values)


def parse_assignments(words: Iterable[str]) -> dict[str, Any]:
    """`section.key=value` words as nested mappings; values are read as YAML, so `1e-3`, `true`, `null`, `[a, b]` work;
    nothing after the sign is the empty text."""
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise SettingsError(f"{word!r} is not a setting; write section.key=value, for example training.seed=1")
        *sections, last = key.split(".")
        inner = changes
        for name in sections:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"{word!r}: {name!r} was already given a value")
        inner[last] = _read_value(text)
    return changes


def _read_value(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string
        try:
            return float(value)
        except ValueError:
            return value
    return value if text.strip() else ""
