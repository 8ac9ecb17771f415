"""JSON Schemas as chat templates can write them, of function tools, of MCP servers and as users write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midthought.tools.definition import ToolDefinition

LEAF = {"type": "integer", "description": "A leaf.", "title": "Leaf"}
TREE = {"properties": {"next": {"$ref": "#/$defs/tree"}, "title": {}}}


def shown(schema: Any, **definitions: Any) -> Any:
    whole = {"type": "object", "properties": {"a": schema}, "$defs": {"leaf": LEAF, "tree": TREE, **definitions}}
    parameters = ToolDefinition("f", "F.", whole).json_schema()["function"]["parameters"]
    assert parameters.keys() == {"type", "properties"}
    return parameters["properties"]["a"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "string", "enum": ["a"], "default": "a"}, {"type": "string", "enum": ["a"], "default": "a"}),
        ({"type": ["null", "array"], "items": True}, {"type": "array", "items": True, "nullable": True}),
        ({"anyOf": [{"type": "null"}, {"type": "number"}]}, {"type": "number", "nullable": True}),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]}, {"nullable": True} | LEAF),
        ({"type": ["integer", "string"]}, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ({"enum": ["a", None]}, {"type": "string", "enum": ["a"], "nullable": True}),
        ({"const": 3}, {"type": "integer", "enum": [3]}),
        ({"allOf": [{"$ref": "#/$defs/leaf"}], "description": "One."}, {"type": "integer", "description": "One."}),
        (
            {"allOf": [{"properties": {"b": {}}}], "properties": {}},
            {"allOf": [{"properties": {"b": {}}}], "properties": {}},
        ),
        ({"oneOf": [{}, {}], "discriminator": {"mapping": {"a": "#/$defs/leaf"}}}, {"oneOf": [{}, {}]}),
        ({"type": "null"}, {"type": "null"}),
        ({"default": {"title": "a", "$ref": "b"}}, {"default": {"title": "a", "$ref": "b"}}),
        ({"$ref": "#/$defs/leaf", "description": "One."}, {"type": "integer", "description": "One."}),
        ({"$ref": "#/$defs/tree"}, {"properties": {"next": {}, "title": {}}}),
        ({"$ref": "https://example.org/x"}, {}),
        (True, {}),
    ],
    ids=str,
)
def test_templates_get_one_type_no_references_and_nullable_for_null(schema: Any, told: dict[str, Any]) -> None:
    assert shown(schema) == {key: value for key, value in told.items() if key != "title"}


def test_definitions_that_refer_to_each_other_do_not_multiply_a_prompt() -> None:
    names = [f"part{number}" for number in range(2000)]
    every = {"properties": {name: {"$ref": f"#/$defs/d{number % 9}"} for number, name in enumerate(names)}}
    assert len(json.dumps(shown({"$ref": "#/$defs/d0"}, **{f"d{number}": every for number in range(9)}))) < 300_000
