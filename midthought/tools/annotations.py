"""Types of a function's parameters, by pydantic: JSON Schema for the model, and JSON values as the function's arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pydantic
import pydantic_core
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
            self._adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(annotation)
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


class _JsonSchema(GenerateJsonSchema):
    """pydantic's JSON Schema, in the order of the fields. Objects have no other keys, and a value of a set may be repeated."""

    set_schema = frozenset_schema = GenerateJsonSchema.list_schema  # type: ignore[assignment]

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        return _closed(super().typed_dict_schema(schema))

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        if any(type(member.value) not in _SCALARS for member in schema["cls"]):
            raise PydanticInvalidForJsonSchema(f"the values of {schema['cls'].__name__} are not all texts or numbers")
        return super().enum_schema(schema)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    others = schema.pop("additionalProperties", False)  # checked last: a missing key is reported before an unknown one
    return {**schema, "additionalProperties": others} if "properties" in schema else schema
