"""Tools by name, and error messages for arguments that do not fit."""

from __future__ import annotations

import asyncio
import threading
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


def test_a_registry_is_asked_by_name_and_counts_its_tools(registry: ToolRegistry) -> None:
    assert "search" in registry and "x" not in registry
    assert len(registry) == 3 and list(registry) == ["search", "broken", "later"]
    assert len(ToolRegistry()) == 0 and ToolRegistry()


def test_register_gives_the_tool_back() -> None:
    tool = Search()
    assert ToolRegistry().register(tool) is tool


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Search, r"Search is a class; register an instance of it: Search\(\)"),
        (len, "is not a tool; decorate it with @tool"),
        ("search", "'search' is not a tool; extend Tool"),
    ],
)
def test_what_is_no_tool_is_refused_with_the_remedy(wrong: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        ToolRegistry([wrong])


@pytest.mark.parametrize(
    ("attribute", "value"), [("timeout_seconds", 0), ("max_concurrency", 0), ("retries", -1), ("timeout_seconds", -1.0)]
)
def test_a_limit_that_makes_no_sense_is_refused(attribute: str, value: float) -> None:
    tool = Broken()
    setattr(tool, attribute, value)
    with pytest.raises(SettingsError, match=f"tool 'broken': {attribute} must be .*, not {value}"):
        ToolRegistry([tool])


def test_a_tool_without_a_definition_or_with_a_wrong_schema_is_refused() -> None:
    class Nameless(Broken):
        definition = None  # type: ignore[assignment]

    class Wrong(Broken):
        definition = ToolDefinition("wrong", "", [ToolParameter("n", "array", "", schema={"items": {"type": "strin"}})])

    with pytest.raises(SettingsError, match="Nameless has no `definition`"):
        ToolRegistry([Nameless()])
    with pytest.raises(SettingsError, match="tool 'wrong': invalid JSON Schema"):
        ToolRegistry([Wrong()])


def test_arguments_nested_without_end_are_refused_in_words(registry: ToolRegistry) -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert registry.execute_tool("search", query="a", within=nested) == (
        False,
        "the arguments are nested too deeply",
    )


class Odd(Tool):
    """Goes wrong in ways that ordinary tools do not."""

    definition = ToolDefinition("odd", "Odd.", [ToolParameter("how", "string", "")])

    def execute(self, how: str) -> Any:
        if how == "exit":
            raise SystemExit(3)
        if how == "silent":
            raise ValueError
        if how == "number":
            return ToolOutput(5)  # type: ignore[arg-type]
        return Unwritable()


class OddLater(Odd):
    async def execute(self, how: str) -> Any:
        if how == "cancelled":
            raise asyncio.CancelledError
        return super().execute(how)


class Unwritable:
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("tool", [Odd(), OddLater()])
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("exit", (False, "3")),
        ("silent", (False, "Tool execution error: ValueError")),
        ("number", (True, "5")),
        ("unwritable", (False, "Tool execution error: no words")),
    ],
)
def test_nothing_that_a_tool_does_comes_out_as_an_exception(tool: Tool, how: str, expected: tuple[bool, str]) -> None:
    registry = ToolRegistry([tool])
    for success, words in (
        registry.execute_tool("odd", how=how),
        asyncio.run(registry.execute_tool_async("odd", how=how)),
    ):
        assert success == expected[0] and words.endswith(expected[1])


def test_the_async_way_says_the_same_and_does_not_block_the_loop(registry: ToolRegistry) -> None:
    class Wait(Tool):
        definition = ToolDefinition("wait", "Waits until somebody else has run.")
        was_released = threading.Event()

        def execute(self) -> str:
            return str(self.was_released.wait(20))

    tool = registry.register(Wait())

    async def episode() -> list[tuple[bool, str]]:
        async def release() -> tuple[bool, str]:
            tool.was_released.set()
            return await registry.execute_tool_async("later")

        return await asyncio.gather(
            registry.execute_tool_async("wait"),
            registry.execute_tool_async("x"),
            registry.execute_tool_async("broken"),
            registry.execute_tool_async("search"),
            registry.execute_tool_async("search", query="tide"),
            release(),
        )

    assert asyncio.run(episode()) == [
        (True, "True"),
        (False, "Tool 'x' not found"),
        (False, "Tool execution error: no luck"),
        (False, "missing argument 'query'"),
        (True, "tide 3 {}"),
        (True, "now"),
    ]


def test_cancelling_the_async_way_cancels_the_tool_and_a_tool_that_cancels_itself_has_failed() -> None:
    class Sleep(Tool):
        definition = ToolDefinition("sleep", "Sleeps.")
        was_cancelled = False

        async def execute(self) -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.was_cancelled = True
                raise
            return "slept"

    tool = Sleep()
    registry = ToolRegistry([tool, OddLater()])

    async def episode() -> None:
        assert await registry.execute_tool_async("odd", how="cancelled") == (
            False,
            "Tool execution error: cancelled by the tool",
        )
        running = asyncio.create_task(registry.execute_tool_async("sleep"))
        await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(0)

    asyncio.run(episode())
    assert tool.was_cancelled


def test_an_unknown_type_is_refused_with_the_near_name(registry: ToolRegistry) -> None:
    class Odd(Broken):
        definition = ToolDefinition("odd", "", [ToolParameter("n", "interger", "")])

    with pytest.raises(SettingsError, match=r"parameter 'n': unknown type 'interger'\. Did you mean 'integer'"):
        registry.register(Odd())


@pytest.mark.parametrize("limit", ["timeout_seconds", "max_concurrency", "retries"])
def test_a_limit_that_is_no_number_is_refused(limit: str) -> None:
    tool = Search()
    setattr(tool, limit, "3")
    with pytest.raises(SettingsError, match=f"tool 'search': {limit}='3' is not a number"):
        ToolRegistry([tool])


def test_a_missing_key_is_told_as_one() -> None:
    class Lookup(Search):
        def execute(self, query: str, k: int, **others: Any) -> str:
            return {"tide": "rises"}[query]

    registry = ToolRegistry([Lookup()])
    assert registry.execute_tool("search", query="ebb") == (False, "Tool execution error: KeyError: 'ebb'")
