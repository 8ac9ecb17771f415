"""JSON Schema's names of types: which a schema allows, and which a value has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES: Mapping[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
}


def allowed_types(schema: Any) -> tuple[str, ...]:
    """Returns the types of the values that fit a schema without references, in its order: of `type`, of alternatives, or of
    `enum` and `const`. Empty if it does not say so."""
    if not isinstance(schema, Mapping):
        return ()
    given = schema.get("type", ())
    found = [given] if isinstance(given, str) else [word for word in given if isinstance(word, str)]
    for key in ("anyOf", "oneOf"):
        alternatives = schema.get(key)
        for each in alternatives if isinstance(alternatives, list | tuple) and not given else ():
            found += allowed_types(each)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else ())
    found += [] if found else [NAMES.get(type(choice), "") for choice in choices]
    return tuple(dict.fromkeys(filter(None, [*found, "null" if schema.get("nullable") is True else ""])))


def fits_type(value: Any, types: tuple[str, ...]) -> bool:
    """Whether a JSON value has one of the types. A whole number is a `number`, too."""
    return NAMES.get(type(value)) in types or (type(value) is int and "number" in types)
