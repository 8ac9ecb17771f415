"""The description of a tool for the model and the chat template."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter

SEARCH = ToolDefinition(
    name="search",
    description="Finds things.",
    parameters=[
        ToolParameter("query", "string", "What to find."),
        ToolParameter("k", "integer", "How many.", required=False, default=3),
        ToolParameter("order", "string", "Which first.", required=False, enum=["new", "old"]),
    ],
)


def test_the_schema_has_openais_shape() -> None:
    assert SEARCH.json_schema() == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Finds things.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to find."},
                    "k": {"type": "integer", "description": "How many.", "default": 3},
                    "order": {"type": "string", "description": "Which first.", "enum": ["new", "old"]},
                },
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    }


STRING = {"type": "string", "description": "What to find."}


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
        type("Idle", (Tool,), {"definition": SEARCH})()
