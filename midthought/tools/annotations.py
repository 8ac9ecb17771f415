"""Types of a function's parameters: JSON Schema for the model, and the conversion from JSON values to the function's arguments.

Not pydantic's `TypeAdapter`: its schemas have `$defs` for enums and `anyOf` for `... | None`, and it does not convert enum
members by name.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import pathlib
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union

import jsonschema
import pydantic
from pydantic.fields import FieldInfo

from midthought.tools.json_types import NAMES, allowed_types

_SCALARS = {python: name for python, name in NAMES.items() if python not in (list, dict)}
_PYTHON: Mapping[Any, Any] = {"string": str, "integer": int, "number": float, "array": list, "object": dict}
_LISTS = (
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Iterable,
    collections.abc.Collection,
)
_MAPPINGS = (collections.abc.Mapping, collections.abc.MutableMapping)


class Kind(NamedTuple):
    """An annotation as JSON Schema for the model, with the conversion from a JSON value to the function's argument."""

    schema: Mapping[str, Any]
    convert: Callable[[Any], Any] | None = None
    description: str | None = None

    def types(self) -> tuple[str, ...]:
        """Returns the JSON types of the values, of all alternatives, in order."""
        return allowed_types(self.schema)


_OF_TEXT: Mapping[type, Kind] = {
    datetime.date: Kind({"type": "string", "format": "date"}, datetime.date.fromisoformat),
    datetime.datetime: Kind({"type": "string", "format": "date-time"}, datetime.datetime.fromisoformat),
    datetime.time: Kind({"type": "string", "format": "time"}, datetime.time.fromisoformat),
    pathlib.Path: Kind({"type": "string"}, pathlib.Path),
    uuid.UUID: Kind({"type": "string", "format": "uuid"}, uuid.UUID),
    decimal.Decimal: Kind({"type": ["number", "string"]}, lambda value: decimal.Decimal(str(value))),
}
"""Types that JSON has no value for, and their texts."""


def kind_of(annotation: Any) -> Kind | None:
    """Returns None if the annotation is not supported. Raises RecursionError for a class that contains itself."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, typing.NewType):
        return kind_of(annotation.__supertype__)
    if hasattr(annotation, "__value__"):  # Python 3.12: type Name = …
        return kind_of(annotation.__value__)
    if origin in (typing.Required, typing.NotRequired):
        return kind_of(parts[0])
    if origin is Annotated:
        return annotated(kind_of(parts[0]), parts[1:])
    if annotation is Any:
        return Kind({})
    if annotation in (int, float):
        return Kind({"type": _SCALARS[annotation]}, annotation)
    if annotation in (str, bool):
        return Kind({"type": _SCALARS[annotation]})
    if isinstance(annotation, type) and annotation in _OF_TEXT:
        return _OF_TEXT[annotation]
    if origin is Literal:
        return _choice({choice: choice for choice in parts})
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _member(annotation)
    return _container(annotation, origin, parts)


def annotated(kind: Kind | None, notes: Iterable[Any]) -> Kind | None:
    """Adds a description (a text) and limits (pydantic's `Field(ge=1, pattern=…)`, annotated-types) to a kind."""
    if kind is None:
        return None
    fields = [note for note in notes if not isinstance(note, str)]
    texts = [note for note in notes if isinstance(note, str)]
    texts += [note.description for note in fields if isinstance(note, FieldInfo) and note.description]
    return kind._replace(
        schema={**kind.schema, **_limits(kind.schema, fields)}, description=texts[0] if texts else kind.description
    )


def _limits(schema: Mapping[str, Any], notes: Sequence[Any]) -> dict[str, Any]:
    plain = _PYTHON.get(schema.get("type") if isinstance(schema.get("type"), str) else None)
    if not notes or plain is None:
        return {}
    try:
        limited: Any = Annotated[(plain, *notes)]
        found = pydantic.TypeAdapter(limited).json_schema()
    except (TypeError, pydantic.errors.PydanticUserError, RuntimeError):  # limits that do not fit the type
        return {}
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern", "format")
    sizes = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
    return {name: found[name] for name in (*names, *sizes) if name in found}


def _container(annotation: Any, origin: Any, parts: tuple[Any, ...]) -> Kind | None:
    if annotation is list or (origin or annotation) in (list, *_LISTS):
        return _list_of(parts)
    if (origin or annotation) in (set, frozenset, collections.abc.Set):
        return _collected(set if origin is collections.abc.Set else origin or annotation, _list_of(parts))
    if (origin or annotation) is tuple:
        return _collected(tuple, _list_of(parts[:1]) if parts[1:] in ((), (Ellipsis,)) else _row_of(parts))
    if annotation is dict or (origin or annotation) in (dict, *_MAPPINGS):
        return _mapping_to(parts)
    if origin in (Union, types.UnionType):
        return _union(parts)
    return _record(annotation) if isinstance(annotation, type) else None


def _choice(choices: Mapping[Any, Any]) -> Kind | None:
    """One of several scalars, each with the value for the function. Lookup by equality also accepts 3.0 for 3."""
    kinds = list(dict.fromkeys(_SCALARS.get(type(choice)) for choice in choices))
    if None in kinds or not kinds:
        return None
    schema = {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(choices)}
    return Kind(schema, lambda value: choices[value])


def _member(members: type[enum.Enum]) -> Kind | None:
    """Members are shown by value, or by name if a value is not a JSON scalar."""
    has_scalars = all(type(member.value) in _SCALARS for member in members)
    return _choice({member.value if has_scalars else member.name: member for member in members})


# -- several values --------------------------------------------------------------------------------------------


def _list_of(parts: tuple[Any, ...]) -> Kind | None:
    item = kind_of(parts[0]) if parts else Kind({})
    if item is None:
        return None
    schema = {"type": "array", "items": item.schema} if item.schema else {"type": "array"}
    convert = item.convert
    return Kind(schema, convert and (lambda values: [convert(value) for value in values]))


def _row_of(parts: tuple[Any, ...]) -> Kind | None:
    """A list with one value of each type, `tuple[float, float]`."""
    kinds = [kind for part in parts if (kind := kind_of(part)) is not None]
    if len(kinds) < len(parts):
        return None
    schemas = [kind.schema for kind in kinds]
    of_items = {"items": schemas[0]} if all(schema == schemas[0] for schema in schemas) else {"prefixItems": schemas}
    schema = {"type": "array", **of_items, "minItems": len(parts), "maxItems": len(parts)}
    return Kind(schema, lambda values: [_converted(kind, value) for kind, value in zip(kinds, values, strict=True)])


def _collected(make: type, listed: Kind | None) -> Kind | None:
    """A list that the function gets as a set or as a tuple."""
    convert = listed and listed.convert
    return listed and listed._replace(convert=lambda values: make(convert(values) if convert else values))


def _mapping_to(parts: tuple[Any, ...]) -> Kind | None:
    item = kind_of(parts[1]) if parts else Kind({})
    if item is None or (parts and parts[0] is not str):
        return None
    schema = {"type": "object", "additionalProperties": item.schema} if item.schema else {"type": "object"}
    convert = item.convert
    return Kind(schema, convert and (lambda values: {key: convert(value) for key, value in values.items()}))


# -- alternatives ----------------------------------------------------------------------------------------------


def _union(parts: tuple[Any, ...]) -> Kind | None:
    others = [part for part in parts if part is not type(None)]
    if set(others) == {int, float}:
        kind: Kind | None = Kind({"type": "number"})
    else:
        kind = kind_of(others[0]) if len(others) == 1 else _one_of(others)
    if kind is None or not kind.schema or len(others) == len(parts):
        return kind
    convert = kind.convert
    schema = _or_null(kind.schema)
    return Kind(schema, convert and (lambda value: None if value is None else convert(value)), kind.description)


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    found = {**schema, "type": [*Kind(schema).types(), "null"]}
    return {**found, "enum": [*schema["enum"], None]} if "enum" in schema else found


def _one_of(parts: Sequence[Any]) -> Kind | None:
    """The first type whose schema the value fits."""
    kinds = [kind for part in parts if (kind := kind_of(part)) is not None and kind.schema]
    if len(kinds) < len(parts):
        return None
    fits = [jsonschema.Draft202012Validator(kind.schema).is_valid for kind in kinds]

    def convert(value: Any) -> Any:
        kind = next((kind for kind, is_fit in zip(kinds, fits, strict=True) if is_fit(value)), None)
        return value if kind is None else _converted(kind, value)

    schemas = [kind.schema for kind in kinds]
    if all(schema.keys() == {"type"} for schema in schemas):
        return Kind({"type": list(dict.fromkeys(word for kind in kinds for word in kind.types()))}, convert)
    return Kind({"anyOf": schemas}, convert)


# -- objects ---------------------------------------------------------------------------------------------------


class _Field(NamedTuple):
    kind: Kind | None
    is_needed: bool
    key: str
    """Its name in JSON, and as an argument of the class."""


def _record(annotation: Any) -> Kind | None:
    """An object with the fields of a dataclass, a NamedTuple, a TypedDict or a pydantic model; None for another class."""
    fields = _fields(annotation)
    if fields is None or any(field.kind is None for field in fields):
        return None
    properties, converters = {}, {}
    for field in fields:
        assert field.kind is not None
        described = {"description": field.kind.description} if field.kind.description else {}
        properties[field.key] = {**field.kind.schema, **described}
        converters[field.key] = field.kind
    required = [field.key for field in fields if field.is_needed]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def convert(values: Mapping[str, Any]) -> Any:
        try:
            return annotation(**{key: _converted(converters[key], value) for key, value in values.items()})
        except pydantic.ValidationError as error:  # its own text has several lines and an address
            raise ValueError("; ".join(_reason(each) for each in error.errors())) from None

    return Kind(schema, convert)


def _fields(annotation: Any) -> list[_Field] | None:
    if issubclass(annotation, pydantic.BaseModel):
        return [_model_field(name, field) for name, field in annotation.model_fields.items()]
    if dataclasses.is_dataclass(annotation):
        missing = dataclasses.MISSING
        fields = [field for field in dataclasses.fields(annotation) if field.init]
        needs = {each.name: each.default is missing and each.default_factory is missing for each in fields}
    elif issubclass(annotation, tuple) and hasattr(annotation, "_field_defaults"):
        needs = {name: name not in annotation._field_defaults for name in annotation._fields}
    elif typing.is_typeddict(annotation):
        needs = {name: name in annotation.__required_keys__ for name in annotation.__annotations__}
    else:
        return None
    hints = typing.get_type_hints(annotation, include_extras=True)
    # Python does not see NotRequired in annotations that are strings
    needs |= {name: False for name in needs if typing.get_origin(hints.get(name)) is typing.NotRequired}
    return [_Field(kind_of(hints.get(name)), is_needed, name) for name, is_needed in needs.items()]


def _model_field(name: str, field: FieldInfo) -> _Field:
    kind = annotated(kind_of(field.annotation), [*field.metadata, *filter(None, [field.description])])
    alias = field.validation_alias or field.alias
    return _Field(kind, field.is_required(), alias if isinstance(alias, str) else name)


def _converted(kind: Kind, value: Any) -> Any:
    return value if kind.convert is None else kind.convert(value)


def _reason(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])
