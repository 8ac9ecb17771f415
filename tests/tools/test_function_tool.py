"""A tool from a typed function: its definition, and the arguments that the function gets."""

from __future__ import annotations

import asyncio
import copy
import enum
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, Optional, TypedDict

import pytest
from calling import call
from calling import run as run_calls
from pydantic import BaseModel, Field

from midthought.errors import SettingsError
from midthought.tools.definition import ToolOutput, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.function_tool import FunctionTool, tool
from midthought.tools.registry import ToolRegistry


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Corner(enum.Enum):
    TOP = (0, 0)
    END = (1, 1)

    def method(self, text: str) -> str:
        """Method."""
        return text


@tool
def search(
    query: str,
    k: Annotated[int, "How many."] = 3,
    *,
    exact: bool = False,
    weight: float = 1,
    order: Literal["new", "old"] = "new",
) -> str:
    """Finds things
    in the archive.

    It is quick.

    Args:
        query (str): What to find:
            words or a name.
        exact: Whether case
        matters.

    Returns:
        order: This is not a parameter's description.
    """
    return f"{query} {k!r} {exact} {weight!r} {order}"


def parameters_of(function: Any) -> dict[str, dict[str, Any]]:
    return tool(function).definition.parameters_schema()["properties"]


def run(made: FunctionTool[..., Any], **parameters: Any) -> tuple[bool, str]:
    return ToolRegistry([made]).execute_tool(made.definition.name, **parameters)


def test_name_description_and_parameters_come_from_the_function() -> None:
    assert search.definition.name == "search"
    assert search.definition.description == "Finds things in the archive."
    assert list(search.definition.parameters) == [
        ToolParameter("query", "string", "What to find: words or a name."),
        ToolParameter("k", "integer", "How many.", required=False, default=3),
        ToolParameter("exact", "boolean", "Whether case matters.", required=False, default=False),
        ToolParameter("weight", "number", "", required=False, default=1),
        ToolParameter("order", "string", "", required=False, enum=["new", "old"], default="new"),
    ]


def test_it_is_still_the_function_and_it_runs_as_a_tool() -> None:
    assert search("tide", 5, order="old") == "tide 5 False 1 old"
    assert run(search, query="tide", k=2.0, weight=2) == (True, "tide 2 False 2.0 new")
    assert run(search, query="tide", order="best") == (
        False,
        "argument 'order' should be one of 'new', 'old', got 'best'",
    )
    assert search.__name__ == "search" and search.__doc__ is not None


def test_containers_unions_and_choices_become_json_schema() -> None:
    def f(
        words: list[str],
        grid: list[list[int]],
        rates: dict[str, float],
        notes: dict[str, Any],
        rest: list,
        color: Color,
        colors: list[Color],
        near: Sequence[float],
        size: int | float,
        name: str | None = None,
        level: Optional[Literal[1, 2]] = 1,  # noqa: UP045
    ) -> str:
        """F."""
        return ""

    for schema in (schemas := parameters_of(f)).values():
        assert schema.pop("description") == ""
    assert schemas == {
        "words": {"type": "array", "items": {"type": "string"}},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "rates": {"type": "object", "additionalProperties": {"type": "number"}},
        "notes": {"type": "object", "additionalProperties": True},
        "rest": {"type": "array", "items": {}},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "colors": {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}},
        "near": {"type": "array", "items": {"type": "number"}},
        "size": {"type": "number"},
        "name": {"type": "string", "nullable": True},
        "level": {"type": "integer", "enum": [1, 2], "nullable": True, "default": 1},
    }


def test_the_function_gets_values_of_its_own_types() -> None:
    @tool
    def paint(
        colors: list[Color], color: Color = Color.RED, rates: dict[str, float] | None = None, times: int | None = 1
    ) -> str:
        """Paints."""
        return repr((colors, color, rates, times))

    red, blue = Color.RED, Color.BLUE
    assert run(paint, colors=["red", "blue"]) == (True, repr(([red, blue], red, None, 1)))
    assert run(paint, colors=[], color="blue", rates={"a": 1}, times=2.0) == (True, repr(([], blue, {"a": 1.0}, 2)))
    assert run(paint, colors=[], rates=None, times=None) == (True, repr(([], red, None, None)))
    assert run(paint, colors=["green"]) == (False, "argument 'colors[0]' should be one of 'red', 'blue', got 'green'")


def test_a_default_that_json_cannot_say_stays_with_the_function_and_a_parameter_may_have_any_name() -> None:
    marker = object()

    @tool
    def f(self: str, function: str, name: str = marker) -> str:  # type: ignore[assignment]
        """F."""
        return f"{self}{function}{name is marker}"

    assert "default" not in f.definition.parameters_schema()["properties"]["name"]
    assert run(f, self="a", function="b") == (True, "abTrue")


def test_an_async_function_is_a_tool_and_may_give_metadata() -> None:
    @tool
    async def later(text: str) -> ToolOutput:
        """Later."""
        await asyncio.sleep(0)
        return ToolOutput(text, {"length": len(text)})

    (event,) = run_calls(ToolExecutor(ToolRegistry([later])), call("later", text="a"))
    assert (event.call.result, event.metadata) == ("a", {"length": 1})
    assert asyncio.run(later("b")).text == "b"


def test_a_bound_method_is_a_tool_and_a_copy_has_its_own_object() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, number: int) -> int:
            """Adds."""
            self.count += number
            return self.count

    first = tool(Counter().add)
    second = copy.deepcopy(first)
    assert [run(first, number=1), run(first, number=1), run(second, number=5)] == [
        (True, "1"),
        (True, "2"),
        (True, "5"),
    ]


def pieces(text: str) -> Iterator[str]:
    """Pieces."""
    yield text


def test_a_tool_that_returns_pieces_fails() -> None:
    @tool
    def hidden(text: str) -> object:
        """Hidden."""
        return pieces(text)

    words = "Tool execution error: the tool yields its result in pieces; execute must return one text"
    assert run(hidden, text="a") == (False, words)


class Knot(BaseModel):
    inside: Knot | None = None


class Old(TypedDict):
    """pydantic refuses it before Python 3.12."""


class Plain:
    """No type of pydantic's."""


class Holder(BaseModel):
    corner: Corner


def of_type(annotation: Any) -> Callable[..., None]:
    def given(value: Any) -> None:
        """Given."""

    given.__annotations__["value"] = annotation
    return given


def defaulted(value: int = Field(3)) -> None:
    """Defaulted."""


def untyped(query, k: int = 1):
    """Untyped."""


def variable(*queries: str) -> None:
    """Variable."""


def silent(value: str) -> None:
    """
    Args:
        value: A value.
    """


def test_a_function_that_cannot_be_told_to_a_model_is_refused_by_name() -> None:
    refused: list[tuple[Any, str]] = [
        (untyped, "tool 'untyped', parameter 'query' has no type; annotate it, for example query: str"),
        (variable, r"parameter 'queries': \*queries: 'str' cannot be passed by name"),
        (of_type(Plain), "parameter 'value': the type .*Plain is not supported .*; use str, int"),
        (of_type(Corner), "the type .*Corner.* is not supported .the values of Corner are not all texts or numbers"),
        (of_type(Holder), "the type .*Holder is not supported .the values of Corner are not all texts or numbers"),
        (of_type(Annotated[str, Field(pattern="(?=a)")]), "the type .*Annotated.* is not supported .*look-around"),
        (of_type("Nowhere"), "its annotations cannot be read .*'Nowhere' is not defined"),
        (of_type(Knot), "the type .*Knot is not supported .it contains itself"),
        *[(of_type(list[Old]), "use `typing_extensions.TypedDict`")] * (sys.version_info < (3, 12)),
        (defaulted, r"has a Field as its default; write value: Annotated\[type, Field"),
        (silent, "tool 'silent': the function has no docstring; write one"),
        (Corner.method, "parameter 'self' has no type; of a method, make the tool from the object: tool.object.method"),
        (Color, "takes a function, not <enum 'Color'>"),
        (functools.partial(copy.copy, 1), r"takes a function, not functools.partial.*write one that calls it"),
        (pieces, "tool 'pieces' yields"),
    ]
    for function, words in refused:
        with pytest.raises(SettingsError, match=words):
            tool(function)
