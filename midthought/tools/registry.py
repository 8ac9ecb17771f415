"""The tools that a model may call, by name, and checks of their arguments. Does not depend on call formats or deadlines."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pydantic
import pydantic_core

from midthought.errors import SettingsError, near_names
from midthought.tools.arguments import TYPES, ArgumentsChecker, ArgumentsError
from midthought.tools.concurrency import result_of
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput

ToolT = TypeVar("ToolT", bound=Tool)

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_PLACE_IN_MEMORY = re.compile(r"<((?:[^<>]|<\w+>){1,200}) at 0x[0-9a-fA-F]+>")
_RETURN = "execute must return a text, or what JSON can write"
_MAX_ERROR_CHARS = 100


class ToolRegistry:
    """Tools by name, in order of registration. Supports `name in registry` and `len`; iterating yields names.

    Examples:
        >>> from midthought.tools.function_tool import tool
        >>> registry = ToolRegistry()
        >>> @registry.register
        ... @tool
        ... def double(number: int) -> int:
        ...     '''Twice the number.'''
        ...     return 2 * number
        >>> registry.execute_tool("double", number=21), "double" in registry
        ((True, '42'), True)
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._checkers: dict[str, ArgumentsChecker] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: ToolT) -> ToolT:
        """Adds a tool and returns it. Raises `SettingsError` if it is not a tool, its name is taken or cannot be written in
        a call, a type is unknown, or a schema or limit is invalid."""
        _require_tool(tool)
        definition = tool.definition
        if not _NAME.fullmatch(definition.name):
            raise SettingsError(
                f"tool name {definition.name!r}: use a letter or _, then letters, digits, '_', '.' or '-' (for an MCP server "
                "that names it otherwise: mcp_tools(…, prefix='…_'))"
            )
        if definition.name in self._tools:
            raise SettingsError(
                f"a tool named {definition.name!r} is already registered; rename one of them: @tool(name='…') for a function, "
                "mcp_tools(…, prefix='…_') for an MCP server; or leave one out, of a server by mcp_tools(…, allowed_tools=[…])"
            )
        for parameter in definition.parameters:
            if parameter.type not in TYPES:
                where = f"tool {definition.name!r}, parameter {parameter.name!r}"
                raise SettingsError(f"{where}: unknown type {parameter.type!r}. {near_names(parameter.type, TYPES)}")
        try:
            self._checkers[definition.name] = ArgumentsChecker(definition.parameters_schema())
        except SettingsError as error:
            raise SettingsError(f"tool {definition.name!r}: {error}") from None
        self._tools[definition.name] = tool
        return tool

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __bool__(self) -> bool:
        return True

    def get(self, name: str) -> Tool | None:
        """Returns the tool of that name, or None."""
        return self._tools.get(name)

    get_tool = get
    """The name of `get` in the setup package."""

    def names(self) -> list[str]:
        return list(self._tools)

    def definitions(self) -> list[ToolDefinition]:
        return [tool.definition for tool in self._tools.values()]

    def arguments(self, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a checked copy of `parameters` for the registered tool `name`, with defaults, and 3.0 converted to 3.

        Raises `ArgumentsError` for the first mistake; a missing argument comes before all others.
        """
        self._checkers[name].check(parameters)
        arguments = copy.deepcopy(dict(parameters))
        for parameter in self._tools[name].definition.parameters:
            value = arguments.get(parameter.name)
            if parameter.name not in arguments and parameter.default is not None:
                arguments[parameter.name] = copy.deepcopy(parameter.default)
            elif parameter.type == "integer" and isinstance(value, float) and value.is_integer():
                arguments[parameter.name] = int(value)
        return arguments

    def execute_tool(self, name: str, /, **parameters: Any) -> tuple[bool, str]:
        """Runs a tool without a deadline and returns `(success, text for the model)`. Never raises.

        The call belongs to no episode: no stateful tool is opened. Works inside event loops, except that of the tools.
        """
        tool = self.get(name)
        if tool is None:
            return False, f"Tool {name!r} not found"
        try:
            result = tool.execute(**self.arguments(name, parameters))
            if inspect.isawaitable(result):
                result = result_of(result)
            return True, as_output(result).text
        except (Exception, SystemExit, GeneratorExit) as error:
            cause = "" if isinstance(error, ArgumentsError) else "Tool execution error: "
            return False, f"{cause}{error_text(error)}"


def as_output(result: Any) -> ToolOutput:
    """Returns the result of `Tool.execute` as a ToolOutput. Lists, dicts, sets, dataclasses and pydantic models become JSON,
    enum members their value, bytes the text that they encode, other types `str`, also types within that have no form in JSON.

    Raises TypeError for a generator, bytes that are not UTF-8, and an object that is written with its place in memory.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("the tool yields its result in pieces; execute must return one text")
    if isinstance(result, ToolOutput):
        return result if isinstance(result.text, str) else dataclasses.replace(result, text=_as_text(result.text))
    return ToolOutput(_as_text(result))


def _as_text(result: Any) -> str:
    if isinstance(result, enum.Enum):
        return _as_text(result.value)
    with contextlib.suppress(TypeError, ValueError, RecursionError):  # not JSON
        is_model = isinstance(result, pydantic.BaseModel) or dataclasses.is_dataclass(type(result))
        if is_model or isinstance(result, dict | list | tuple | set | frozenset):
            with contextlib.suppress(TypeError):  # a key that JSON does not have, such as an enum member
                return json.dumps(result, ensure_ascii=False, allow_nan=False, default=as_json)
            return json.dumps(as_json(result), ensure_ascii=False, allow_nan=False, default=as_json)
    if isinstance(result, str):
        return result
    if isinstance(result, bytes | bytearray):
        try:
            return result.decode()
        except UnicodeDecodeError:
            raise TypeError(f"the tool returned bytes that are no text; {_RETURN}") from None
    if found := _PLACE_IN_MEMORY.search(text := str(result)):
        raise TypeError(f"the tool returned an object without a text, <{found[1]}>; {_RETURN}")
    return text


def as_json(part: Any) -> Any:
    """Returns an enum, date, set, model or array within a result as values of JSON. Raises ValueError for other types."""
    if isinstance(part, enum.Enum):
        return as_json(part.value)
    if isinstance(part, set | frozenset):
        return sorted(map(as_json, part), key=json.dumps)  # in the same order in every process
    if serializer := getattr(type(part), "__pydantic_serializer__", None):  # of a model or a dataclass of pydantic
        return _in_order(json.loads(serializer.to_json(part, fallback=as_json)), serializer.to_python(part))
    if dataclasses.is_dataclass(type(part)):
        part = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    if callable(getattr(part, "tolist", None)):
        return part.tolist()
    if isinstance(part, dict):
        keys = pydantic_core.to_jsonable_python(dict.fromkeys(part))
        return dict(zip(keys, map(as_json, part.values()), strict=True))  # no two keys have become one
    if isinstance(part, list | tuple):
        return list(map(as_json, part))
    return pydantic_core.to_jsonable_python(part, by_alias=False)


def _in_order(written: Any, value: Any) -> Any:
    """Returns the JSON of a model with its sets in the same order in every process; `value` says what is a set."""
    if isinstance(value, set | frozenset) and isinstance(written, list):
        return sorted(written, key=json.dumps)
    if isinstance(value, dict) and isinstance(written, dict) and len(written) == len(value):
        return dict(zip(written, map(_in_order, written.values(), value.values()), strict=True))
    are_lists = isinstance(value, list | tuple) and isinstance(written, list) and len(written) == len(value)
    return list(map(_in_order, written, value)) if are_lists else written


def _require_tool(tool: Any) -> None:
    if isinstance(tool, type):
        raise SettingsError(f"{tool.__name__} is a class; register an instance of it: {tool.__name__}()")
    if isinstance(tool, Sequence) and any(isinstance(each, Tool) for each in tool):
        raise SettingsError("a list of tools is within the list of tools; write [*these, *those]")
    if not isinstance(tool, Tool):
        remedy = "decorate it with @tool" if callable(tool) else "extend Tool, or use @tool on a function"
        raise SettingsError(f"{tool!r} is not a tool; {remedy}")
    if not isinstance(getattr(tool, "definition", None), ToolDefinition):
        raise SettingsError(f"{type(tool).__name__} has no `definition`; set it to a ToolDefinition")
    name = tool.definition.name
    limits = ("timeout_seconds", int | float, "a number above 0"), ("max_concurrency", int, "an integer of 1 or more")
    for limit, kind, wanted in limits:
        value = getattr(tool, limit)
        if value is not None and not (isinstance(value, kind) and value > 0):
            raise SettingsError(f"tool {name!r}: {limit} must be {wanted}, or None, not {value!r}")


# -- messages of failed calls, for the model that reads them ----------------------------------------------------


def error_text(error: BaseException) -> str:
    """Returns an exception's message for the model; with its class if the message is empty or, for a KeyError, only a key."""
    message = str(error)
    return f"{type(error).__name__}: {message}" if isinstance(error, KeyError) else message or type(error).__name__


def short_error_text(error: Exception) -> str:
    """Returns `error_text` in one line of at most 100 characters."""
    try:
        return shortened(error_text(error)) or type(error).__name__
    except Exception:  # raised by its own __str__
        return type(error).__name__


def shortened(text: str) -> str:
    """Returns a text in one line of at most 100 characters."""
    return encodable(" ".join(text[: 100 * _MAX_ERROR_CHARS].split())[:_MAX_ERROR_CHARS])


def encodable(text: str) -> str:
    """Replaces lone surrogates, which files and tokenizers cannot represent, with question marks."""
    return text.encode(errors="replace").decode()
