"""Tools by name, and error messages for arguments that do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from midthought.errors import SettingsError
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.registry import ToolRegistry


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


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry([Search(), Broken()])


def test_a_tool_runs_by_name_with_checked_copies_of_its_arguments(registry: ToolRegistry) -> None:
    assert registry.execute_tool("search", query="tide") == (True, "tide 3 {}")
    assert registry.execute_tool("search", query="tide", k=5, order="new") == (True, "tide 5 {'order': 'new'}")
    assert registry.execute_tool("x") == (False, "Tool 'x' not found")
    assert registry.execute_tool("broken") == (False, "Tool execution error: no luck")
    arguments = registry.arguments("search", asked := {"query": "a", "k": 2.0, "within": ["x"]})
    assert arguments["k"] == 2 and isinstance(arguments["k"], int)
    arguments["within"].append("y")
    assert asked["within"] == ["x"]


def test_a_registry_is_asked_by_name_and_gives_its_tools_in_order(registry: ToolRegistry) -> None:
    assert registry.names() == list(registry) == ["search", "broken"]
    assert [definition.name for definition in registry.definitions()] == registry.names()
    assert "search" in registry and "x" not in registry and registry.get("x") is None
    assert len(registry) == 2 and len(ToolRegistry()) == 0 and ToolRegistry()
    assert ToolRegistry().register(tool := Search()) is tool


def test_what_is_no_tool_or_no_sense_is_refused_with_the_remedy(registry: ToolRegistry) -> None:
    def broken(name: str = "b", *parameters: ToolParameter, **attributes: Any) -> Broken:
        tool = Broken()
        vars(tool).update({"definition": ToolDefinition(name, "", parameters), **attributes})
        return tool

    seconds, calls = (
        "timeout_seconds must be a number above 0, or None",
        "max_concurrency must be an integer of 1 or more",
    )
    refused: list[tuple[Any, str]] = [
        (Search, r"Search is a class; register an instance of it: Search\(\)"),
        (len, "is not a tool; decorate it with @tool"),
        ("search", "'search' is not a tool; extend Tool"),
        (Search(), "'search' is already registered; rename one"),
        (broken("look up"), "'look up': use a letter"),
        (broken(definition=None), "Broken has no `definition`"),
        (
            broken("wrong", ToolParameter("n", "array", schema={"items": {"type": "strin"}})),
            "tool 'wrong': invalid JSON Schema",
        ),
        (
            broken("odd", ToolParameter("n", "interger")),
            r"parameter 'n': unknown type 'interger'\. Did you mean 'integer'",
        ),
        (broken(timeout_seconds=0), f"tool 'b': {seconds}, not 0"),
        (broken(timeout_seconds="3"), f"tool 'b': {seconds}, not '3'"),
        (broken(max_concurrency=0), f"tool 'b': {calls}, or None, not 0"),
        (broken(max_concurrency=2.5), f"tool 'b': {calls}, or None, not 2.5"),
    ]
    for wrong, words in refused:
        with pytest.raises(SettingsError, match=words):
            registry.register(wrong)


class Unwritable:
    def __str__(self) -> str:
        raise ValueError("no words")


ODD: dict[str, tuple[Any, bool, str]] = {
    "exit": (SystemExit(3), False, "3"),
    "silent": (ValueError(), False, "Tool execution error: ValueError"),
    "key": (KeyError("Bo"), False, "Tool execution error: KeyError: 'Bo'"),
    "number": (ToolOutput(5), True, "5"),  # type: ignore[arg-type]
    "unwritable": (Unwritable(), False, "Tool execution error: no words"),
}


class Odd(Tool):
    """Goes wrong in ways that ordinary tools do not."""

    definition = ToolDefinition("odd", "Odd.", [ToolParameter("name", "string", "")])

    def execute(self, name: str) -> Any:
        if isinstance(result := ODD[name][0], BaseException):
            raise result
        return result


class OddLater(Odd):
    async def execute(self, name: str) -> Any:
        return super().execute(name)


@pytest.mark.parametrize("tool", [Odd(), OddLater()])
def test_nothing_that_a_tool_does_comes_out_as_an_exception(tool: Tool) -> None:
    registry = ToolRegistry([tool])
    for name, (_, is_ok, told) in ODD.items():
        success, words = registry.execute_tool("odd", name=name)
        assert success == is_ok and words.endswith(told)
