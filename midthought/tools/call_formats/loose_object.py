"""Objects as Gemma writes them: `{key:<|"|>text<|"|>,size:3,words:[<|"|>a<|"|>]}`. Keys are bare, texts stand between quotes that
are tokens of their own and are not escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_KEY = re.compile(r"([{,])\s*([^\s:{}\[\],](?:[^:{}\[\],]*[^\s:{}\[\],])?)\s*:")


def write_loose(value: Any, quote: str) -> str:
    """Returns a JSON value in this form; keys are sorted, as the templates sort them."""
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{write_loose(value[key], quote)}" for key in sorted(value, key=str.lower)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(write_loose(each, quote) for each in value) + "]"
    return json.dumps(value)


def read_loose(text: str, quote: str) -> dict[str, Any]:
    """Returns the object at the start of the text, which is turned into JSON. Raises ValueError if there is none."""
    parts = text.split(quote)
    parts[1::2] = map(json.dumps, parts[1::2])
    parts[::2] = (_KEY.sub(lambda found: f"{found[1]}{json.dumps(found[2])}:", part) for part in parts[::2])
    try:
        value, _ = json.JSONDecoder().raw_decode("".join(parts).lstrip())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("they are no object")
    return value
