"""Descriptions of tools for a system prompt, independent of the call format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from midthought.tools.definition import ToolDefinition, ToolParameter

_EXAMPLES: dict[str, Any] = {
    "string": "...",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
}


def describe_tools(definitions: Sequence[ToolDefinition]) -> str:
    """Returns the tools and their parameters, one per line, after the heading "Tools:"."""
    lines = ["Tools:"]
    for definition in definitions:
        lines.append(f"- {definition.name}: {definition.description}")
        lines += [f"  - {_describe(parameter)}" for parameter in definition.parameters]
    return "\n".join(lines)


def example_parameters(definition: ToolDefinition) -> dict[str, Any]:
    """Returns arguments for an example call: every required parameter with a value of its type."""
    return {parameter.name: _example(parameter) for parameter in definition.parameters if parameter.required}


def _describe(parameter: ToolParameter) -> str:
    schema = parameter.json_schema()
    plain = {key: schema.pop(key, None) for key in ("type", "description", "enum", "default")}
    notes = [_json({"type": plain["type"], **schema} if plain["type"] else schema) if schema else parameter.type]
    if not parameter.required:
        notes.append("optional")
    if plain["enum"]:
        notes.append(f"one of {', '.join(map(_json, plain['enum']))}")
    if plain["default"] is not None:
        notes.append(f"default {_json(plain['default'])}")
    return f"{parameter.name} ({', '.join(notes)}): {parameter.description}"


def _example(parameter: ToolParameter) -> Any:
    if choices := parameter.json_schema().get("enum"):
        return choices[0]
    return _EXAMPLES[parameter.type] if parameter.default is None else parameter.default


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
