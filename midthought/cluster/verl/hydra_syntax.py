"""Formats values for Hydra's command line. Does not import Hydra."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_][\w/-]*(\.[\w/-]+)*", re.ASCII)
_NOT_TEXT = ("null", "true", "false", "nan", "inf")


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
