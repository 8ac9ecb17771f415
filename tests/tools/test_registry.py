"""Tools by name, and what a model is told about arguments that do not fit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.registry import ArgumentsError, ToolRegistry


class Search(Tool):
    definition = ToolDefinition(
        "search",
        "Finds things.",
        [
            ToolParameter("query", "string", "What to find."),
            ToolParameter("k", "integer", "How many.", required=False, default=3),
            ToolParameter("order", "string", "Which first.", required=False, enum=("new", "old")),
            ToolParameter("within", "array", "Where.", required=False),
        ],
    )

    def execute(self, query: str, k: int, **others: Any) -> str:
        return f"{query} {k!r} {others}"


class Broken(Tool):
    definition = ToolDefinition("broken", "Fails.")

    def execute(self) -> str:
        raise ValueError("no luck")


class Later(Tool):
    definition = ToolDefinition("later", "Takes its time.")

    async def execute(self) -> ToolOutput:
        await asyncio.sleep(0)
        return ToolOutput("now", {"seen": 1})


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry([Search(), Broken(), Later()])


def test_a_tool_runs_by_name_with_its_defaults_filled_in(registry: ToolRegistry) -> None:
    assert registry.execute_tool("search", query="tide") == (True, "tide 3 {}")
    assert registry.execute_tool("search", query="tide", k=5, order="new") == (True, "tide 5 {'order': 'new'}")


def test_a_parameter_may_be_called_name() -> None:
    class Greet(Tool):
        definition = ToolDefinition("greet", "Greets.", [ToolParameter("name", "string", "Whom.")])

        def execute(self, name: str) -> str:
            return f"Hello {name}"

    assert ToolRegistry([Greet()]).execute_tool("greet", name="Ada") == (True, "Hello Ada")


def test_an_unknown_tool_and_a_raising_one_are_told_apart(registry: ToolRegistry) -> None:
    assert registry.execute_tool("x") == (False, "Tool 'x' not found")
    assert registry.execute_tool("broken") == (False, "Tool execution error: no luck")


def test_an_async_tool_runs_from_plain_code_and_from_within_a_loop(registry: ToolRegistry) -> None:
    async def within() -> tuple[bool, str]:
        return registry.execute_tool("later")

    assert registry.execute_tool("later") == (True, "now")
    assert asyncio.run(within()) == (True, "now")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "missing argument 'query'"),
        ({"k": "x"}, "missing argument 'query'"),
        ({"query": "a", "k": "three"}, "argument 'k' should be an integer, got 'three'"),
        ({"query": "a", "k": True}, "argument 'k' should be an integer, got True"),
        ({"query": "a", "k": 2.5}, "argument 'k' should be an integer, got 2.5"),
        ({"query": None}, "argument 'query' should be a string, got None"),
        ({"query": "a", "within": {}}, "argument 'within' should be a list, got {}"),
        ({"query": "a", "order": "best"}, "argument 'order' should be one of 'new', 'old', got 'best'"),
        ({"query": "a", "top": 1}, "unknown argument 'top'; there is: query, k, order, within"),
        ({"query": ["x" * 500]}, "argument 'query' should be a string, got ['" + "x" * 58 + "…"),
    ],
)
def test_wrong_arguments_get_words_that_a_model_can_act_on(
    registry: ToolRegistry, parameters: dict, words: str
) -> None:
    with pytest.raises(ArgumentsError) as caught:
        registry.arguments("search", parameters)
    assert str(caught.value) == words
    assert registry.execute_tool("search", **parameters) == (False, words)


def test_a_whole_number_written_as_a_float_becomes_an_integer(registry: ToolRegistry) -> None:
    arguments = registry.arguments("search", {"query": "a", "k": 2.0})
    assert arguments == {"query": "a", "k": 2} and isinstance(arguments["k"], int)


def test_a_tool_that_changes_its_arguments_changes_no_record(registry: ToolRegistry) -> None:
    asked = {"query": "a", "within": ["x"]}
    registry.arguments("search", asked)["within"].append("y")
    assert asked == {"query": "a", "within": ["x"]}


def test_names_come_in_order_and_get_gives_none_for_others(registry: ToolRegistry) -> None:
    assert registry.names() == ["search", "broken", "later"]
    assert [definition.name for definition in registry.definitions()] == registry.names()
    assert registry.get("search") is not None and registry.get("x") is None


def test_a_name_that_no_call_can_write_or_that_is_taken_is_refused(registry: ToolRegistry) -> None:
    class Odd(Broken):
        definition = ToolDefinition("look up", "Cannot be called.")

    with pytest.raises(SettingsError, match="'look up'"):
        registry.register(Odd())
    with pytest.raises(SettingsError, match="'search' is already registered"):
        registry.register(Search())


def test_an_unknown_type_is_refused_with_the_near_name(registry: ToolRegistry) -> None:
    class Odd(Broken):
        definition = ToolDefinition("odd", "", [ToolParameter("n", "interger", "")])

    with pytest.raises(SettingsError, match=r"parameter 'n': unknown type 'interger'\. Did you mean 'integer'"):
        registry.register(Odd())
