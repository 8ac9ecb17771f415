"""The description of a tool for the model and the chat template."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter

STRING = {"type": "string", "description": "What to find."}


def test_the_schema_has_openais_shape() -> None:
    parameters = [
        ToolParameter("query", "string", "What to find."),
        ToolParameter("k", "integer", "How many.", required=False, default=3),
        ToolParameter("order", "string", "Which first.", required=False, enum=["new", "old"]),
    ]
    properties = {
        "query": STRING,
        "k": {"type": "integer", "description": "How many.", "default": 3},
        "order": {"type": "string", "description": "Which first.", "enum": ["new", "old"]},
    }
    schema = {"type": "object", "properties": properties, "required": ["query"], "additionalProperties": False}
    function = {"name": "search", "description": "Finds things.", "parameters": schema}
    definition = ToolDefinition(name="search", description="Finds things.", parameters=parameters)
    assert definition.json_schema() == {"type": "function", "function": function}


@pytest.mark.parametrize(
    "parameters",
    [
        [ToolParameter("query", str, "What to find."), ToolParameter("k", int, required=False)],  # type: ignore[arg-type]
        {"type": "object", "properties": {"query": STRING, "k": {"type": "integer"}}, "required": ["query"]},
    ],
)
def test_parameters_may_be_written_as_a_json_schema(parameters: Any) -> None:
    definition = ToolDefinition("search", "Finds things.", parameters)
    assert [(each.name, each.type, each.required) for each in definition.parameters] == [
        ("query", "string", True),
        ("k", "integer", False),
    ]
    schema = definition.parameters_schema()
    assert schema["properties"]["query"] == STRING and schema["required"] == ["query"]
    assert replace(definition, name="find").parameters_schema() == schema


def test_a_parameter_of_another_form_is_an_error_that_names_it() -> None:
    wrong: list[Any] = [["query"], {"query": 3}, [{"name": "query", "type": "string"}]]
    for parameters in wrong:
        with pytest.raises(SettingsError, match=r"tool 'search': a parameter is .*give ToolParameter"):
            ToolDefinition("search", "Finds things.", parameters)


def test_the_definition_may_be_set_on_the_instance_and_execute_is_needed() -> None:
    class Named(Tool):
        def execute(self, **parameters: Any) -> ToolOutput:
            return ToolOutput(self.definition.name, {"length": len(self.definition.name)})

    assert Named(ToolDefinition("ada", "Says its name.")).execute() == ToolOutput("ada", {"length": 3})
    with pytest.raises(TypeError, match="execute"):
        type("Idle", (Tool,), {"definition": ToolDefinition("idle", "Does nothing.")})()


# -- schemas as chat templates can write them, of function tools, of MCP servers and as users write them --------

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
