"""JSON Schemas as chat templates can write them, and the types that a schema allows. Does not depend on tools.

Templates write `type` as text and do not resolve references. The form is that of transformers' `get_json_schema`.
"""

from __future__ import annotations

import json
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


MAX_SCHEMA_CHARS = 100_000
"""Size of a schema of others, as JSON."""
OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords with schemas by name."""
OF_DATA = ("enum", "const", "default", "examples")
"""Keywords with values that are no schemas."""
_UNUSED = ("$defs", "definitions", "$schema", "title", "discriminator")


class Definitions:
    """The definitions of a schema that replace references. All together they have at most about as many characters as a schema
    may have: definitions that refer to each other would multiply."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._whole, self._num_left = whole, MAX_SCHEMA_CHARS
        self.is_cut = False
        """Whether a reference was replaced by an empty schema."""

    def of(self, reference: str, inside: tuple[str, ...]) -> Mapping[str, Any]:
        """Returns the definition for a reference like `#/$defs/name`; an empty schema if it does not exist, if the limit is
        reached, or if it contains itself (`inside`: the references around it)."""
        found: Any = self._whole
        for step in reference.removeprefix("#/").split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping) or reference in inside or self._num_left <= 0:
            self.is_cut = True
            return {}
        self._num_left -= len(json.dumps(found))
        return found


def template_schema(schema: Any, definitions: Definitions | None = None, inside: tuple[str, ...] = ()) -> Any:
    """Returns a schema without references and titles, with `nullable` for null, and one name as `type`: several are `anyOf`.

    Arguments are checked against the schema itself: the result accepts more if a reference was cut (`Definitions.is_cut`).
    """
    if isinstance(schema, list):
        return [template_schema(each, definitions, inside) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    definitions = definitions or Definitions(schema)
    shown = {key: each for key, each in schema.items() if key not in _UNUSED and (each is not None or key != "default")}
    if isinstance(reference := shown.pop("$ref", None), str):
        target = template_schema(definitions.of(reference, inside), definitions, (*inside, reference))
        return {**target, **template_schema(shown, definitions, inside)}
    for key, value in shown.items():
        if key in OF_NAMES and isinstance(value, Mapping):
            parts = {name: {} if isinstance(each, bool) else each for name, each in value.items()}
            shown[key] = {name: template_schema(each, definitions, inside) for name, each in parts.items()}
        elif key not in OF_DATA:
            shown[key] = template_schema(value, definitions, inside)
    return _with_one_type(shown)


def _with_one_type(shown: dict[str, Any]) -> dict[str, Any]:
    if "const" in shown:
        shown["enum"] = [shown.pop("const")]
    if isinstance(names := shown.get("type"), list | tuple) and "anyOf" not in shown:
        del shown["type"]
        shown["anyOf"] = [{"type": name} for name in names]
    has_null = None in shown.get("enum", ())
    for key in ("anyOf", "oneOf", "allOf"):
        given = shown.get(key) or []
        others = [each for each in given if each != {"type": "null"}]
        has_null |= len(others) < len(given)
        if key == "anyOf" and {"type": "number"} in others:
            others = [each for each in others if each != {"type": "integer"}]
        if others:
            shown[key] = others
        if len(others) == 1 and isinstance(others[0], Mapping) and "properties" not in shown:
            shown = {**shown.pop(key)[0], **shown}
    if has_null:
        shown |= {"nullable": True}
    if "enum" in shown:
        shown["enum"] = [each for each in shown["enum"] if each is not None] or [None]
    types = allowed_types({key: value for key, value in shown.items() if key == "enum"})
    return {"type": types[0], **shown} if "type" not in shown and len(types) == 1 else shown
