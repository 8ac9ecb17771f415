"""Reads YAML of users with limits of size and nesting, and of what its aliases expand to. Does not depend on settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads YAML that this package wrote, about 8 times as fast as `yaml.SafeLoader` if PyYAML has libyaml."""
SAFE_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
MAX_BYTES = 256 * 1024
"""Size of a settings file; PyYAML reads about 100 KB per second."""
MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Values of a file after every alias (`*name`) is replaced by what it names."""


def read_yaml_file(path: str | Path) -> Any:
    """Returns the content of a YAML file. Raises `yaml.YAMLError` if it is not YAML or exceeds a limit, `OSError` if it cannot
    be read."""
    with Path(path).open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise yaml.YAMLError(f"it has more than {MAX_BYTES:,} bytes; settings are smaller")
    try:
        loader = SAFE_LOADER(data.decode("utf-8-sig"))
        node = loader.get_single_node()
        _num_values(node, 0, {})
        return None if node is None else loader.construct_document(node)
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
