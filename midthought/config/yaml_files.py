"""Reads YAML of users with limits of size and nesting, and of what its aliases expand to, and `section.key=value` arguments. Does
not depend on settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from midthought.errors import SettingsError

SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads YAML that this package wrote, about 8 times as fast as `yaml.SafeLoader` if PyYAML has libyaml."""
SAFE_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
MAX_BYTES = 256 * 1024
"""Size of a settings file; PyYAML reads about 100 KB per second."""
MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Values of a file after every alias (`*name`) is replaced by what it names."""


def read_yaml_file(path: str | Path, loader: Any = SAFE_LOADER) -> Any:
    """Returns the content of a YAML file. Raises `yaml.YAMLError` if it is not YAML or exceeds a limit, `OSError` if it cannot
    be read."""
    with Path(path).open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise yaml.YAMLError(f"it has more than {MAX_BYTES:,} bytes; settings are smaller")
    try:
        reader = loader(data.decode("utf-8-sig"))
        node = reader.get_single_node()
        _num_values(node, 0, {})
        return None if node is None else reader.construct_document(node)
    except ValueError as error:  # not UTF-8; a date or a number that Python does not have
        raise yaml.YAMLError(f"a value cannot be read: {error}") from None
    except RecursionError:
        raise yaml.YAMLError(_TOO_DEEP) from None


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep, or an alias contains itself"


def _num_values(node: yaml.Node | None, depth: int, known: dict[int, int]) -> int:
    """Returns the number of values of a node with its aliases replaced. A node is counted once, however often it is named."""
    if depth > MAX_DEPTH:
        raise yaml.YAMLError(_TOO_DEEP)
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_num_values(part, depth + 1, known) for part in parts)
    if known[id(node)] > MAX_VALUES:
        raise yaml.YAMLError(f"its aliases expand to more than {MAX_VALUES:,} values; write them out")
    return known[id(node)]


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
