"""The tools that a model may call, by name, and whether a call's arguments fit. Knows no notation and no deadline."""

from __future__ import annotations

import asyncio
import copy
import inspect
import re
import threading
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

import jsonschema

from midthought.errors import SettingsError, near_names
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_TYPES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}
_MAX_SHOWN = 60
"""Characters of a wrong value that an error shows."""


class ArgumentsError(ValueError):
    """Arguments that do not fit a tool's definition; the message is written for the model."""


class ToolRegistry:
    """Tools by name, in the order in which they were registered."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._validators: dict[str, jsonschema.Draft202012Validator] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool) -> None:
        """Add a tool. SettingsError where its name is taken or cannot be written in a call, or a type is unknown."""
        definition = tool.definition
        if not _NAME.fullmatch(definition.name):
            raise SettingsError(
                f"tool name {definition.name!r}: use a letter or _, then letters, digits, '_', '.' or '-'"
            )
        if definition.name in self._tools:
            raise SettingsError(f"a tool named {definition.name!r} is already registered; give one another name")
        for parameter in definition.parameters:
            if parameter.type not in _TYPES:
                where = f"tool {definition.name!r}, parameter {parameter.name!r}"
                raise SettingsError(f"{where}: unknown type {parameter.type!r}. {near_names(parameter.type, _TYPES)}")
        self._validators[definition.name] = jsonschema.Draft202012Validator(definition.parameters_schema())
        self._tools[definition.name] = tool

    def get(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return self._tools.get(name)

    def names(self) -> list[str]:
        return list(self._tools)

    def definitions(self) -> list[ToolDefinition]:
        return [tool.definition for tool in self._tools.values()]

    def arguments(self, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of `parameters` as the registered tool `name` takes them: checked, defaults filled in, 3.0 made 3.

        ArgumentsError says one thing that is wrong, a missing argument before all others.
        """
        arguments = copy.deepcopy(dict(parameters))
        errors = list(self._validators[name].iter_errors(arguments))
        definition = self._tools[name].definition
        if errors:
            first = min(errors, key=lambda error: error.validator != "required")
            raise ArgumentsError(_explain(first, definition, arguments))
        for parameter in definition.parameters:
            if parameter.name not in arguments and parameter.default is not None:
                arguments[parameter.name] = copy.deepcopy(parameter.default)
            elif parameter.type == "integer" and parameter.name in arguments:
                arguments[parameter.name] = int(arguments[parameter.name])
        return arguments

    def execute_tool(self, name: str, /, **parameters: Any) -> tuple[bool, str]:
        """Run a tool and wait for it, without a deadline: `(success, what the model would read)`. Never raises.

        Works inside a running event loop too: an `async` tool gets a loop and a thread of its own.
        """
        tool = self.get(name)
        if tool is None:
            return False, f"Tool {name!r} not found"
        try:
            result = tool.execute(**self.arguments(name, parameters))
            if inspect.isawaitable(result):
                result = _wait_for(result)
        except ArgumentsError as error:
            return False, str(error)
        except Exception as error:
            return False, f"Tool execution error: {error}"
        return True, as_output(result).text


def as_output(result: Any) -> ToolOutput:
    """What `Tool.execute` gave, as a ToolOutput; anything but a string or ToolOutput is written with `str`."""
    return result if isinstance(result, ToolOutput) else ToolOutput(str(result))


def _explain(error: jsonschema.ValidationError, definition: ToolDefinition, arguments: Mapping[str, Any]) -> str:
    known = [parameter.name for parameter in definition.parameters]
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in arguments)
        return f"missing argument {missing!r}"
    if error.validator == "additionalProperties":
        extra = next(name for name in arguments if name not in known)
        return f"unknown argument {_shown(extra)}; there is: {', '.join(known) or 'none'}"
    name = str(error.absolute_path[0])
    if error.validator == "enum":
        choices = ", ".join(repr(choice) for choice in error.validator_value)
        return f"argument {name!r} should be one of {choices}, got {_shown(error.instance)}"
    return f"argument {name!r} should be {_TYPES[error.validator_value]}, got {_shown(error.instance)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def _wait_for(awaitable: Awaitable[Any]) -> Any:
    results: list[Any] = []
    errors: list[BaseException] = []

    async def settle() -> None:
        results.append(await awaitable)

    def work() -> None:
        try:
            asyncio.run(settle())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="midthought-tool", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise RuntimeError(str(errors[0]) or type(errors[0]).__name__) from errors[0]
    return results[0]
