"""A tool from a typed function: its definition is derived from the signature and the docstring, the types of its parameters by
pydantic."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import re
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

import pydantic
import pydantic_core
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, PydanticInvalidForJsonSchema

from midthought.errors import SettingsError
from midthought.tools.arguments import ArgumentsError, shown
from midthought.tools.definition import Tool, ToolDefinition
from midthought.tools.registry import as_json
from midthought.tools.schemas import NAMES, Definitions, template_schema

P = ParamSpec("P")
R = TypeVar("R")

_HEADER = re.compile(r"(?:Args|Arguments|Parameters):[ \t]*")
_SECTION = re.compile(rf"^{_HEADER.pattern}\n((?:[ \t]+.*(?:\n|$)|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+)[ \t]*(?:\(.*?\))?:(?=\s|$)", re.MULTILINE)


class FunctionTool(Tool, Generic[P, R]):
    """Result of `@tool`: a Tool that can still be called as the original function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_seconds: float | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        if not (inspect.isfunction(function) or inspect.ismethod(function) or hasattr(function, "__wrapped__")):
            remedy = "write one that calls it, or extend Tool"
            if isinstance(function, str):
                remedy = f"write @tool(name={function!r})"
            raise SettingsError(f"@tool takes a function, not {function!r}; {remedy}")
        name = function.__name__ if name is None else name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise SettingsError(f"tool {name!r} yields its result in pieces; return one text")
        functools.update_wrapper(self, function)
        self._types = _types(function, name)
        self.definition = _definition(function, name, description, self._types)
        self.timeout_seconds = timeout_seconds
        self.max_concurrency = max_concurrency
        self._function: Callable[..., Any] = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def execute(self, /, **parameters: Any) -> Any:
        return self._function(**self._converted(parameters))

    def _converted(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Converts JSON values to the annotated types: enum members, floats for whole numbers, …"""
        return {name: self._types[name].convert(value, name) for name, value in parameters.items()}


class _AsyncFunctionTool(FunctionTool[P, R]):
    async def execute(self, /, **parameters: Any) -> Any:
        return await self._function(**self._converted(parameters))


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_seconds: float | None = None,
    max_concurrency: int | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Makes a tool from a typed function, plain or `async`; the result can still be called as the function.

    The model reads the function's name, the first paragraph of its docstring, and its parameters: `str`, `int`,
    `float`, `bool`, `list[...]`, `dict[str, ...]`, `Literal`, an `Enum`, `... | None` and other unions, `set[...]`,
    `tuple[...]`, dates and times, `Path`, `Decimal`, `UUID`, a dataclass, a `TypedDict`, a pydantic model.
    Their descriptions come from the docstring (in Google's style), from `Annotated[int, "How many."]`, or from pydantic's
    `Field`, which may also have limits: `Annotated[int, Field(ge=1)]`.
    Enum members are shown and passed by value.

    Options: `name`, `description`, and `timeout_seconds`, `max_concurrency` as on `Tool`.
    Raises `SettingsError` if the function has no docstring (and there is no `description`) or one that describes other
    parameters, if it yields, or if a parameter has no type or a type that JSON Schema cannot express.

    Examples:
        >>> @tool
        ... def repeat(text: str, times: int = 2) -> str:
        ...     '''Repeats a text.
        ...
        ...     Args:
        ...         text: What to repeat.
        ...         times: How often.
        ...     '''
        ...     return text * times
        >>> repeat("ha"), repeat.execute(text="ho", times=3)
        ('haha', 'hohoho')
        >>> repeat.definition.parameters[0].description
        'What to repeat.'
    """
    return _made(function, options) if function is not None else lambda function: _made(function, options)


def _made(function: Callable[..., Any], options: Mapping[str, Any]) -> FunctionTool[..., Any]:
    made = _AsyncFunctionTool if inspect.iscoroutinefunction(function) else FunctionTool
    return made(function, **options)


# -- the signature ---------------------------------------------------------------------------------------------


def _types(function: Callable[..., Any], name: str) -> dict[str, ParameterType]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        remedy = "use types that the function's module imports"
        raise SettingsError(f"tool {name!r}: its annotations cannot be read ({error}); {remedy}") from None
    types = {}
    for parameter in inspect.signature(function).parameters.values():
        where = f"tool {name!r}, parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise SettingsError(f"{where}: {parameter} cannot be passed by name; list the parameters one by one")
        if parameter.name not in hints:
            remedy = f"annotate it, for example {parameter.name}: str"
            if parameter.name in ("self", "cls"):
                remedy = f"of a method, make the tool from the object: tool(object.{name})"
            raise SettingsError(f"{where} has no type; {remedy}")
        hint = hints[parameter.name]
        if isinstance(parameter.default, FieldInfo):
            remedy = f"write {parameter.name}: Annotated[type, Field(…)] = default"
            raise SettingsError(f"{where} has a Field as its default; {remedy}")
        try:
            types[parameter.name] = ParameterType(hint)
        except ValueError as error:
            raise SettingsError(
                f"{where}: the type {inspect.formatannotation(hint)} is not supported ({error}); use str, int, float, bool, "
                "list[...], dict[str, ...], Literal, Enum, unions, a dataclass, TypedDict or pydantic model"
            ) from None
    return types


# -- the definition --------------------------------------------------------------------------------------------


def _definition(
    function: Callable[..., Any], name: str, description: str | None, types: Mapping[str, ParameterType]
) -> ToolDefinition:
    docstring = inspect.getdoc(function) or ""
    description = _purpose(docstring) if description is None else description
    if not description:
        remedy = "write one (the model reads its first paragraph)"
        raise SettingsError(f"tool {name!r}: the function has no docstring; {remedy}")
    documented = _documented(docstring)
    if unknown := documented.keys() - types.keys():
        remedy = f"its parameters: {', '.join(types)}" if types else "it has none"
        raise SettingsError(
            f"tool {name!r}: the docstring describes {sorted(unknown)[0]!r}, which is no parameter; {remedy}"
        )
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        kind, default = types[parameter.name], parameter.default
        described = kind.description or documented.get(parameter.name) or kind.schema.get("description", "")
        properties[parameter.name] = {**kind.schema, "description": described}
        if default is parameter.empty:
            required.append(parameter.name)
        elif (value := kind.json_value(default)) is not None:
            properties[parameter.name]["default"] = value
    schema: Any = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolDefinition(name, description, schema)


# -- docstrings in Google's style -------------------------------------------------------------------------------


def _purpose(docstring: str) -> str:
    """Returns the first paragraph, on one line; empty if the docstring starts with its parameters."""
    lines = docstring.splitlines()
    return " ".join(itertools.takewhile(lambda line: line.strip() and not _HEADER.fullmatch(line), lines))


def _documented(docstring: str) -> dict[str, str]:
    """Returns the descriptions under `Args:`: indented entries `name (type): text`, each with its continuation lines."""
    block = textwrap.dedent("".join(_SECTION.findall(docstring)))
    _, *parts = _ENTRY.split(block)
    texts = (" ".join(filter(None, map(str.strip, text.splitlines()))) for text in parts[1::2])
    return dict(zip(parts[::2], texts, strict=True))


# -- types of parameters ---------------------------------------------------------------------------------------


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
        if any(isinstance(member.value, list | dict) or type(member.value) not in NAMES for member in schema["cls"]):
            raise PydanticInvalidForJsonSchema(f"the values of {schema['cls'].__name__} are not all texts or numbers")
        return super().enum_schema(schema)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    others = schema.pop("additionalProperties", False)  # checked last: a missing key is reported before an unknown one
    return {**schema, "additionalProperties": others} if "properties" in schema else schema
