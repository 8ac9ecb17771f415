"""Reads YAML files and `section.key=value` arguments as nested mappings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from midthought.config.yaml_files import MAX_DEPTH, read_yaml_file
from midthought.errors import SettingsError


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the settings in a YAML file. Raises `SettingsError` if it is missing or not a mapping."""
    try:
        values = read_yaml_file(path)
    except FileNotFoundError:
        raise SettingsError(f"settings file {path} does not exist; check the path given to --config") from None
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"settings file {path} cannot be read: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise SettingsError(
            f"settings file {path} contains a {type(values).__name__}, not sections; "
            "write for example 'training:\\n  seed: 1'"
        )
    return dict(values)


def parse_assignments(words: Iterable[str]) -> dict[str, Any]:
    """Returns `section.key=value` arguments as nested mappings. Raises `SettingsError`.

    Values are YAML 1.2: `1e-3`, `true`, `null`, `[a, b]`; quoted values are strings; `section.key=` is the empty string.
    """
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise SettingsError(f"{word!r} is not a setting; write section.key=value, for example training.seed=1")
        *sections, last = key.split(".")
        if len(sections) > MAX_DEPTH or any("\ud800" <= sign <= "\udfff" for sign in word):
            raise SettingsError(
                f"{word[:60]!a} is not a setting: it must be UTF-8, with at most {MAX_DEPTH} dots in the name"
            )
        if not all((*sections, last)):
            raise SettingsError(f"{word!r}: a name is missing before or after a dot; write section.key=value")
        inner = changes
        for name in sections:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"{word!r}: {name!r} was already given a value")
        inner[last] = _read_value(text)
    return changes


class _ScalarLoader(yaml.SafeLoader):
    """Scalars of YAML 1.2: `1e-3` is a number; `on`, `12:30`, `2024-01-01` and `010` are strings, not as in YAML 1.1."""


_ScalarLoader.yaml_implicit_resolvers = {}
for _kind, _form, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan",
        list("-+.0123456789"),
    ),
):
    _ScalarLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_form})\Z"), _first)


def _read_value(text: str) -> Any:
    start = text.lstrip()[:1]
    try:
        value = text if start in ("", "#") else _ScalarLoader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    is_plain = isinstance(value, str) and start not in ("'", '"')
    return text.strip() if is_plain else value  # in an unquoted string, ` #`, `&` and `|` have no special meaning
