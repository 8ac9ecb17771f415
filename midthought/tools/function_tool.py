"""A tool from a typed function: its definition is derived from the signature and the docstring.

Not pydantic's `TypeAdapter`: its schemas have `$defs` for enums and `anyOf` for `... | None`, it accepts types that are refused
here (`int | str`, `dict[int, ...]`), and it does not convert enum members by name.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import inspect
import itertools
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, ParamSpec, TypeVar, Union, overload

from pydantic import BaseModel

from midthought.errors import SettingsError
from midthought.tools.arguments import TYPES
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter

P = ParamSpec("P")
R = TypeVar("R")

_SCALARS: Mapping[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_ARGS_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_ARGS_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


class FunctionTool(Tool, Generic[P, R]):
    """Result of `@tool`: a Tool that can still be called as the original function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        pure: bool = False,
        timeout_seconds: float | None = None,
        max_concurrency: int | None = None,
        retries: int | None = None,
    ) -> None:
        original = _original(function)
        if not (inspect.isfunction(original) or inspect.ismethod(original) or hasattr(original, "__wrapped__")):
            raise SettingsError(f"@tool takes a function, not {function!r}; for other objects extend Tool")
        name = original.__name__ if name is None else name
        if inspect.isgeneratorfunction(original) or inspect.isasyncgenfunction(original):
            raise SettingsError(f"tool {name!r} yields its result in pieces; return one text")
        functools.update_wrapper(self, original)
        kinds = _kinds(function, name)
        self.definition = _definition(function, name, description, kinds)
        self.pure = pure
        self.timeout_seconds = timeout_seconds
        self.max_concurrency = max_concurrency
        self.retries = retries
        self._function: Callable[..., Any] = function
        self._converters = {parameter: kind.convert for parameter, kind in kinds.items() if kind.convert is not None}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def execute(self, /, **parameters: Any) -> Any:
        return self._function(**self._converted(parameters))

    def _converted(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Converts JSON values to the annotated types: enum members, floats for whole numbers, …"""
        return {
            name: self._converters[name](value) if name in self._converters else value
            for name, value in parameters.items()
        }


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
    pure: bool = False,
    timeout_seconds: float | None = None,
    max_concurrency: int | None = None,
    retries: int | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Makes a tool from a typed function, plain or `async`; the result can still be called as the function.

    The model reads the function's name, the first paragraph of its docstring, and its parameters: `str`, `int`,
    `float`, `bool`, `list[...]`, `dict[str, ...]`, `Literal`, an `Enum`, `... | None`, `set[...]`, `tuple[..., ...]`,
    a dataclass, a `TypedDict`, a pydantic model. Their descriptions come from a Google-style `Args:` section or
    `Annotated[int, "How many."]`.
    Enum members are shown and passed by value. A `functools.partial` shows the parameters that it leaves open.

    Options: `name`, `description`, and `pure`, `timeout_seconds`, `max_concurrency`, `retries` as on `Tool`.
    Raises `SettingsError` if the function has no docstring (and there is no `description`), if it yields, or if a parameter has
    no type or a type that JSON Schema cannot express.

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


class _Kind(NamedTuple):
    """An annotation as JSON Schema for the model, with the conversion from a JSON value to the function's argument."""

    schema: Mapping[str, Any]
    convert: Callable[[Any], Any] | None = None
    description: str | None = None


def _kinds(function: Callable[..., Any], name: str) -> dict[str, _Kind]:
    try:
        hints = typing.get_type_hints(_original(function), include_extras=True)
    except Exception as error:
        raise SettingsError(
            f"tool {name!r}: its annotations cannot be read ({error}); use types that the function's module imports"
        ) from None
    kinds = {}
    for parameter in _parameters(function):
        where = f"tool {name!r}, parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise SettingsError(f"{where}: {parameter} cannot be passed by name; list the parameters one by one")
        if parameter.name not in hints:
            raise SettingsError(f"{where} has no type; annotate it, for example {parameter.name}: str")
        try:
            kind = _kind(hints[parameter.name])
        except RecursionError:  # a class that contains itself
            kind = None
        if kind is None or kind.schema == {}:
            raise SettingsError(
                f"{where}: the type {inspect.formatannotation(hints[parameter.name])} is not supported; use str, "
                "int, float, bool, list[...], dict[str, ...], Literal, Enum, ... | None, a dataclass, TypedDict or pydantic model"
            )
        kinds[parameter.name] = kind
    return kinds


def _original(function: Callable[..., Any]) -> Any:
    """Returns the function of a `partial`, which has the name, the docstring and the annotations."""
    return function.func if isinstance(function, functools.partial) else function


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the parameters that a call may set: without those that a `partial` has set."""
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return [each for each in inspect.signature(function).parameters.values() if each.name not in bound]


def _kind(annotation: Any) -> _Kind | None:
    """Returns None if the annotation is not supported."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Required, typing.NotRequired):
        return _kind(parts[0])
    if origin is Annotated:
        inner = _kind(parts[0])
        description = next((part for part in parts[1:] if isinstance(part, str)), None)
        return inner and inner._replace(description=description)
    if annotation is Any:
        return _Kind({})
    if annotation in (int, float):
        return _Kind({"type": _SCALARS[annotation]}, annotation)
    if annotation in (str, bool):
        return _Kind({"type": _SCALARS[annotation]})
    if origin is Literal:
        return _choice({choice: choice for choice in parts})
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _member(annotation)
    if annotation is list or origin in (list, collections.abc.Sequence):
        return _list_of(parts)
    if (origin or annotation) in (tuple, set, frozenset):
        return _collection(origin or annotation, parts)
    if annotation is dict or origin in (dict, collections.abc.Mapping):
        return _mapping_to(parts)
    if origin in (Union, types.UnionType):
        return _union(parts)
    return _record(annotation) if isinstance(annotation, type) else None


def _choice(choices: Mapping[Any, Any]) -> _Kind | None:
    """One of several scalars, each with the value for the function. Lookup by equality also accepts 3.0 for 3."""
    kinds = list(dict.fromkeys(_SCALARS.get(type(choice)) for choice in choices))
    if None in kinds or not kinds:
        return None
    schema = {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(choices)}
    return _Kind(schema, lambda value: choices[value])


def _member(members: type[enum.Enum]) -> _Kind | None:
    """Members are shown by value, or by name if a value is not a JSON scalar."""
    has_scalars = all(type(member.value) in _SCALARS for member in members)
    return _choice({member.value if has_scalars else member.name: member for member in members})


def _list_of(parts: tuple[Any, ...]) -> _Kind | None:
    item = _kind(parts[0]) if parts else _Kind({})
    if item is None:
        return None
    schema = {"type": "array", "items": item.schema} if item.schema else {"type": "array"}
    convert = item.convert
    return _Kind(schema, convert and (lambda values: [convert(value) for value in values]))


def _collection(make: type, parts: tuple[Any, ...]) -> _Kind | None:
    """A list that the function gets as a set or as a tuple of any length."""
    if make is tuple and parts[1:] not in ((), (Ellipsis,)):
        return None
    listed = _list_of(parts[:1])
    convert = listed and listed.convert
    return listed and listed._replace(convert=lambda values: make(convert(values) if convert else values))


def _record(annotation: Any) -> _Kind | None:
    """An object with the fields of a dataclass, a TypedDict or a pydantic model; None for another class."""
    if dataclasses.is_dataclass(annotation):
        fields = [field for field in dataclasses.fields(annotation) if field.init]
        missing = dataclasses.MISSING
        needs = {each.name: each.default is missing and each.default_factory is missing for each in fields}
    elif issubclass(annotation, BaseModel):
        needs = {name: field.is_required() for name, field in annotation.model_fields.items()}
    elif typing.is_typeddict(annotation):
        needs = {name: name in annotation.__required_keys__ for name in annotation.__annotations__}
    else:
        return None
    hints = typing.get_type_hints(annotation, include_extras=True)
    # Python does not see NotRequired in annotations that are strings
    needs |= {name: False for name in needs if typing.get_origin(hints[name]) is typing.NotRequired}
    kinds = {name: _kind(hints[name]) for name in needs}
    properties, converters = {}, {}
    for name, kind in kinds.items():
        if kind is None:
            return None
        properties[name] = {**kind.schema, **({"description": kind.description} if kind.description else {})}
        converters[name] = kind.convert or (lambda value: value)
    required = [name for name, is_needed in needs.items() if is_needed]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return _Kind(schema, lambda values: annotation(**{name: converters[name](value) for name, value in values.items()}))


def _mapping_to(parts: tuple[Any, ...]) -> _Kind | None:
    item = _kind(parts[1]) if parts else _Kind({})
    if item is None or (parts and parts[0] is not str):
        return None
    schema = {"type": "object", "additionalProperties": item.schema} if item.schema else {"type": "object"}
    convert = item.convert
    return _Kind(schema, convert and (lambda values: {key: convert(value) for key, value in values.items()}))


def _union(parts: tuple[Any, ...]) -> _Kind | None:
    others = [part for part in parts if part is not type(None)]
    if set(others) == {int, float}:
        kind: _Kind | None = _Kind({"type": "number"})
    else:
        kind = _kind(others[0]) if len(others) == 1 else None
    if kind is None or not kind.schema or len(others) == len(parts):
        return kind
    schema = {**kind.schema, "type": [*_types(kind.schema), "null"]}
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    convert = kind.convert
    return _Kind(schema, convert and (lambda value: None if value is None else convert(value)), kind.description)


def _types(schema: Mapping[str, Any]) -> list[str]:
    return [schema["type"]] if isinstance(schema["type"], str) else list(schema["type"])


# -- the definition --------------------------------------------------------------------------------------------


def _definition(
    function: Callable[..., Any], name: str, description: str | None, kinds: Mapping[str, _Kind]
) -> ToolDefinition:
    docstring = (inspect.getdoc(_original(function)) or "").splitlines()
    if description is None:
        description = " ".join(
            itertools.takewhile(lambda line: line.strip() and not _ARGS_SECTION.fullmatch(line), docstring)
        )
    if not description:
        raise SettingsError(
            f"tool {name!r}: the function has no docstring; write one (the model reads its first paragraph)"
        )
    documented = _documented(docstring)
    parameters = {parameter.name: parameter for parameter in _parameters(function)}
    return ToolDefinition(
        name,
        description,
        [_parameter(parameters[key], kind, kind.description or documented.get(key, "")) for key, kind in kinds.items()],
    )


def _parameter(parameter: inspect.Parameter, kind: _Kind, description: str) -> ToolParameter:
    schema = kind.schema
    is_plain = isinstance(schema["type"], str) and schema.keys() <= {"type", "enum"}
    return ToolParameter(
        parameter.name,
        next((word for word in _types(schema) if word in TYPES), "string"),
        description,
        required=parameter.default is parameter.empty,
        enum=schema.get("enum") if is_plain else None,
        default=_json_default(parameter.default, schema.get("enum", ())),
        schema=None if is_plain else schema,
    )


def _json_default(default: Any, choices: Sequence[Any]) -> Any:
    """Returns the default for the model; None if there is none or it is not JSON (the function still has it)."""
    if isinstance(default, enum.Enum):
        return next((shown for shown in (default.value, default.name) if shown in choices), None)
    try:
        return None if default is inspect.Parameter.empty else json.loads(json.dumps(default, allow_nan=False))
    except (TypeError, ValueError):
        return None


def _documented(docstring: Sequence[str]) -> dict[str, str]:
    """Returns the entries of the `Args:` section, each with its continuation lines."""
    found: dict[str, str] = {}
    indent: int | None = None
    name, in_section = "", False
    for line in docstring:
        depth = len(line) - len(line.lstrip())
        if not in_section:
            in_section = depth == 0 and _ARGS_SECTION.fullmatch(line) is not None
        elif line.strip() and depth == 0:
            break
        elif line.strip():
            indent = depth if indent is None else indent
            entry = _ARGS_ENTRY.fullmatch(line.strip()) if depth == indent else None
            if entry:
                name, found[entry[1]] = entry[1], entry[2]
            elif name:
                found[name] = f"{found[name]} {line.strip()}".strip()
    return found
