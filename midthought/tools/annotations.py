"""Types of a function's parameters, by pydantic: JSON Schema for the model, and JSON values as the function's arguments."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union

import pydantic
import pydantic_core
import typing_extensions
from pydantic.json_schema import GenerateJsonSchema, PydanticInvalidForJsonSchema

from midthought.tools.arguments import ArgumentsError, shown
from midthought.tools.json_types import NAMES
from midthought.tools.registry import as_json
from midthought.tools.template_schema import Definitions, template_schema

_SCALARS = [kind for kind in NAMES if kind not in (list, dict)]


class ParameterType:
    """The annotation of one parameter. Raises ValueError, with the reason in one line, if the model cannot write its values."""

    def __init__(self, annotation: Any) -> None:
        try:
            self._adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(_for_pydantic(annotation))
            whole = self._adapter.json_schema(schema_generator=_JsonSchema)
        except RecursionError:
            raise ValueError("it contains itself") from None
        except (pydantic.errors.PydanticUserError, pydantic_core.SchemaError, TypeError, NameError) as error:
            raise ValueError(" ".join(str(error).split("\n\nFor further")[0].split())) from None
        definitions = Definitions(whole)
        self.schema: dict[str, Any] = template_schema(whole, definitions)
        if definitions.is_cut:
            raise ValueError("it contains itself, or too many other types")
        notes = [getattr(each, "description", each) for each in getattr(annotation, "__metadata__", ())]
        self.description = next((each for each in notes if isinstance(each, str)), "")
        """What `Annotated` or pydantic's `Field` says; empty if they say nothing."""

    def convert(self, value: Any, name: str) -> Any:
        """Returns the function's argument for a JSON value. Raises `ArgumentsError` if there is none."""
        try:
            found = self._adapter.validate_python(value)
        except pydantic.ValidationError as error:
            raise ArgumentsError("; ".join(_sentences(error, name))) from None
        return list(found) if isinstance(found, Iterator) else found  # of `Iterable[…]`, which can be read only once

    def json_value(self, default: Any) -> Any:
        """Returns a default for the model; None if JSON cannot write it, or it is no value of the type."""
        try:
            written = json.loads(json.dumps(default, allow_nan=False, default=as_json))
            self.convert(written, "")
        except (TypeError, ValueError):
            return None
        return written


def _sentences(error: pydantic.ValidationError, name: str) -> Iterator[str]:
    for each in error.errors(include_url=False):
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in (name, *each["loc"]))
        yield f"argument {shown(path[1:])}: {each['msg']}, got {shown(each['input'])}"


def _for_pydantic(annotation: Any) -> Any:
    """Returns a type with `Annotated[int, "How many."]` as pydantic's `Field`, and with records as TypedDicts."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if not parts or origin is Literal:
        return _record(annotation) if isinstance(annotation, type) else annotation
    if origin is Annotated:
        notes = [pydantic.Field(description=each) if isinstance(each, str) else each for each in parts[1:]]
        return Annotated[(_for_pydantic(parts[0]), *notes)]
    inner = tuple(map(_for_pydantic, parts))
    return (Union if origin is UnionType else origin)[inner if len(inner) > 1 else inner[0]]


def _record(kind: Any) -> Any:
    """Returns the TypedDict of a dataclass, a NamedTuple or a TypedDict; another class unchanged. pydantic refuses
    `typing.TypedDict` before Python 3.12, takes named tuples for lists, and ignores unknown keys."""
    if is_dict := typing_extensions.is_typeddict(kind):
        needs = {name: name in kind.__required_keys__ for name in kind.__annotations__}
    elif issubclass(kind, tuple) and hasattr(kind, "_field_defaults"):
        needs = {name: name not in kind._field_defaults for name in kind._fields}
    elif dataclasses.is_dataclass(kind) and not hasattr(kind, "__pydantic_fields__"):
        missing, fields = dataclasses.MISSING, [each for each in dataclasses.fields(kind) if each.init]
        needs = {each.name: each.default is missing and each.default_factory is missing for each in fields}
    else:
        return kind
    hints = typing.get_type_hints(kind, include_extras=True)
    typed = {}
    for name, is_needed in needs.items():
        hint = hints.get(name, Any)
        is_marked = typing.get_origin(hint) in (typing.Required, typing.NotRequired)
        typed[name] = _for_pydantic(hint if is_marked or is_needed else typing.NotRequired[hint])
    make: Any = typing_extensions.TypedDict
    made = make(kind.__name__, typed)
    made.__doc__, made.__pydantic_config__ = None, pydantic.ConfigDict(extra="forbid")
    return made if is_dict else Annotated[made, pydantic.AfterValidator(lambda given: kind(**given))]


class _JsonSchema(GenerateJsonSchema):
    """pydantic's JSON Schema, in the order of the fields. Objects have no other keys, sets are lists in which a value may be
    repeated, and descriptions of fields may be texts: `Annotated[int, "How many."]`."""

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return _closed(schema["cls"], super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return _closed(schema["cls"], super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        return _closed(schema.get("cls"), super().typed_dict_schema(schema))

    def set_schema(self, schema: Any) -> dict[str, Any]:
        return self.list_schema(schema)

    def frozenset_schema(self, schema: Any) -> dict[str, Any]:
        return self.list_schema(schema)

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        if any(type(member.value) not in _SCALARS for member in schema["cls"]):
            raise PydanticInvalidForJsonSchema(f"the values of {schema['cls'].__name__} are not all texts or numbers")
        return super().enum_schema(schema)


def _closed(kind: Any, schema: dict[str, Any]) -> dict[str, Any]:
    for name, field in schema.get("properties", {}).items():
        given = getattr(kind, "__pydantic_fields__", {}).get(name)
        texts = [each for each in given.metadata if isinstance(each, str)] if given else []
        field |= {"description": texts[0], **field} if texts else {}
    others = schema.pop("additionalProperties", False)  # checked last: a missing key is reported before an unknown one
    return {**schema, "additionalProperties": others} if "properties" in schema else schema
