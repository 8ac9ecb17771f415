"""A tool from a typed function: its definition, and the arguments that the function gets."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict

import numpy
import pytest
from calling import call
from calling import run as run_calls
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field, field_serializer, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

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


def properties_of(made: FunctionTool[..., Any]) -> dict[str, Any]:
    return made.definition.parameters_schema()["properties"]


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
    wrong = run(search, query="tide", order="best")
    assert wrong == (False, "argument 'order' should be one of 'new', 'old', got 'best'")
    assert search.__name__ == "search" and search.__doc__ is not None


def test_containers_unions_and_choices_become_json_schema() -> None:
    @tool
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

    for schema in (schemas := properties_of(f)).values():
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

    assert "default" not in properties_of(f)["name"]
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
    assert [run(each, number=1)[1] for each in (first, first, second)] == ["1", "2", "1"]


def pieces(text: str) -> Iterator[str]:
    """Pieces."""
    yield text


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


def misspelled(query: str, limit: int = 3) -> str:
    """Looks for words.

    Args:
        querry: What to look for.
        limit: How many results.
    """
    return query * limit


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
        (misspelled, "the docstring describes 'querry', which is no parameter; its parameters: query, limit"),
        (Corner.method, "parameter 'self' has no type; of a method, make the tool from the object: tool.object.method"),
        (Color, "takes a function, not <enum 'Color'>"),
        (functools.partial(copy.copy, 1), r"takes a function, not functools.partial.*write one that calls it"),
        (pieces, "tool 'pieces' yields"),
    ]
    for function, words in refused:
        with pytest.raises(SettingsError, match=words):
            tool(function)


# -- types of parameters and of results -------------------------------------------------------------------------

UserId = NewType("UserId", int)


class Book(BaseModel):
    kind: Literal["book"] = "book"
    pages: int = Field(1, ge=1, le=5000, description="Number of pages.")
    isbn: str = Field(alias="ISBN", pattern=r"^\d+$")
    tags: Annotated[list[str], Field(max_length=2, description="What it is about.")] = []

    @field_validator("isbn")
    @classmethod
    def has_no_zero(cls, isbn: str) -> str:
        if "0" in isbn:
            raise ValueError("a zero")
        return isbn


@dataclasses.dataclass
class Disc:
    minutes: int


class Letters(BaseModel):
    of: set[str]


class Several(RootModel[set[str]]):
    pass


class Trip(BaseModel):
    model_config = ConfigDict(ser_json_timedelta="float", arbitrary_types_allowed=True)
    lasts: datetime.timedelta
    cost: float
    places: Any = None

    @computed_field
    def is_long(self) -> bool:
        return self.lasts > datetime.timedelta(hours=1)


@pydantic_dataclass
class Price:
    amount: float

    @field_serializer("amount")
    def _written(self, amount: float) -> str:
        return f"{amount:.2f}"


def test_a_union_takes_the_first_type_that_the_value_fits() -> None:
    @tool
    def alternatives(value: int | str, words: str | list[int], item: Book | Disc | None = None) -> str:
        """Alternatives."""
        return repr((value, words, item))

    either = [{"type": "integer"}, {"type": "string"}]
    assert properties_of(alternatives)["value"] == {"anyOf": either, "description": ""}
    assert run(alternatives, value=3.0, words=[1.0]) == (True, "(3, [1], None)")
    assert run(alternatives, value="3", words="a", item={"minutes": 2}) == (True, "('3', 'a', Disc(minutes=2))")
    book = run(alternatives, value=1, words=[], item={"ISBN": "12"})
    assert book == (True, "(1, [], Book(kind='book', pages=1, isbn='12', tags=[]))")
    wrong = run(alternatives, value=1.5, words="a")
    assert wrong == (False, "argument 'value' should be an integer or a string, got 1.5")
    assert not run(alternatives, value=1, words="a", item={"name": "a"})[0]


def test_other_types_of_pydantic_are_json_for_the_model_and_themselves_for_the_function() -> None:
    @tool
    def several(
        pair: tuple[float, float],
        words: Iterable[str],
        seen: AbstractSet[int],
        rates: Mapping[str, float],
        user: UserId,
        day: datetime.date,
        path: pathlib.Path = pathlib.Path("a"),
        price: decimal.Decimal = decimal.Decimal("0.1"),
    ) -> str:
        """Several."""
        return repr((pair, words, seen, rates, user, day, path.name, price))

    shown = properties_of(several)
    two = {"minItems": 2, "maxItems": 2}
    assert shown["pair"] == {"type": "array", "prefixItems": [{"type": "number"}] * 2, **two, "description": ""}
    assert shown["day"] == {"type": "string", "format": "date", "description": ""}
    given = {"pair": [1, 2], "words": ["b"], "seen": [1, 1], "rates": {"x": 1}, "user": 4}
    given |= {"day": "2024-05-06", "path": "x/y", "price": 2.5}
    expected = "((1.0, 2.0), ['b'], frozenset({1}), {'x': 1.0}, 4, datetime.date(2024, 5, 6), 'y', Decimal('2.5'))"
    assert run(several, **given) == (True, expected)
    short = run(several, **{**given, "pair": [1]})
    assert short == (False, "argument 'pair' should have a length of at least 2, got [1]")
    is_ok, message = run(several, **{**given, "day": "yesterday"})
    assert not is_ok and "'yesterday'" in message


def test_limits_descriptions_and_aliases_of_fields_and_models_are_in_the_schema_and_checked() -> None:
    @tool
    def limited(
        count: Annotated[int, Field(ge=1, le=5, description="How many.")],
        name: Annotated[str, Field(min_length=2, pattern="^a")] = "ab",
        book: Book | None = None,
    ) -> str:
        """Limited."""
        return repr((count, name, book))

    shown = properties_of(limited)
    assert shown["count"] == {"type": "integer", "minimum": 1, "maximum": 5, "description": "How many."}
    assert limited.definition.parameters_schema()["required"] == ["count"]
    book = shown["book"]
    pages = {"type": "integer", "minimum": 1, "maximum": 5000, "description": "Number of pages.", "default": 1}
    assert book["properties"]["pages"] == pages
    assert book["properties"]["tags"]["description"] == "What it is about."
    assert (book["required"], book["properties"]["tags"]["maxItems"]) == (["ISBN"], 2)
    assert run(limited, count=1) == (True, "(1, 'ab', None)")
    given = run(limited, count=1, book={"ISBN": "12", "tags": ["a"]})
    assert given == (True, "(1, 'ab', Book(kind='book', pages=1, isbn='12', tags=['a']))")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"count": 9}, "argument 'count' should be at most 5, got 9"),
        ({"count": 1, "name": "a"}, "argument 'name' should have a length of at least 2, got 'a'"),
        ({"count": 1, "book": {"ISBN": "a"}}, r"argument 'book.ISBN': String should match pattern '^\d+$', got 'a'"),
        ({"count": 1, "book": {"ISBN": "10"}}, "argument 'book.ISBN': Value error, a zero, got '10'"),
    ]
    for arguments, words in wrong:
        assert run(limited, **arguments) == (False, words)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"a": "ü", "b": [1, None]}, '{"a": "ü", "b": [1, null]}'),
        (Book(ISBN="12"), '{"kind": "book", "pages": 1, "isbn": "12", "tags": []}'),
        ({"a": {1, 2}}, '{"a": [1, 2]}'),
        (Color.RED, "red"),
        (enum.Enum("Shade", {"DARK": "dark"}, type=str).DARK, "dark"),
        ([{Color.RED: 1, datetime.date(2026, 1, 2): ({Color.BLUE: 2},)}], '[{"red": 1, "2026-01-02": [{"blue": 2}]}]'),
        ({"colour": Color.RED, "day": datetime.date(2026, 1, 2)}, '{"colour": "red", "day": "2026-01-02"}'),
        ([Disc(3), Book(ISBN="12")], '[{"minutes": 3}, {"kind": "book", "pages": 1, "isbn": "12", "tags": []}]'),
        ({"mean": numpy.float64(0.5), "all": numpy.array([1, 2])}, '{"mean": 0.5, "all": [1, 2]}'),
        ({Color.RED: ({*"hgfedcba"}, numpy.array([1]))}, '{"red": [["a", "b", "c", "d", "e", "f", "g", "h"], [1]]}'),
        ({Color.RED: 1, "red": 2}, "{<Color.RED: 'red'>: 1, 'red': 2}"),
        ([{*"hgfedcba"}], '[["a", "b", "c", "d", "e", "f", "g", "h"]]'),
        ({*"hgfedcba"}, '["a", "b", "c", "d", "e", "f", "g", "h"]'),
        (Letters(of={*"edcba"}), '{"of": ["a", "b", "c", "d", "e"]}'),
        ([Several({*"edcba"})], '[["a", "b", "c", "d", "e"]]'),
        (
            [Trip(lasts=datetime.timedelta(seconds=3), cost=math.nan, places=numpy.arange(2))],
            '[{"lasts": 3.0, "cost": null, "places": [0, 1], "is_long": false}]',
        ),
        (Price(2.5), '{"amount": "2.50"}'),
        (
            [Letters(of={*"edcba"}), Disc({*"edcba"})],
            '[{"of": ["a", "b", "c", "d", "e"]}, {"minutes": ["a", "b", "c", "d", "e"]}]',
        ),
        (enum.Enum("Sets", {"ALL": [frozenset("edcba")]}).ALL, '[["a", "b", "c", "d", "e"]]'),
        (None, "None"),
        ("é".encode(), "é"),
        ("<object at 0x7f>", "<object at 0x7f>"),
    ],
)
def test_results_that_have_parts_are_json_for_the_model(result: Any, text: str) -> None:
    assert given(result) == (True, text)


def given(result: Any) -> tuple[bool, str]:
    """What the model reads of a tool's result."""
    return run(tool(name="give", description="Gives.")(lambda: result))


RETURN = "; execute must return a text, or what JSON can write"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (b"\x89PNG", f"the tool returned bytes that are no text{RETURN}"),
        (object(), f"the tool returned an object without a text, <object object>{RETURN}"),
        ([1, object()], f"the tool returned an object without a text, <object object>{RETURN}"),
        (untyped, f"the tool returned an object without a text, <function untyped>{RETURN}"),
        (pieces("a"), "the tool yields its result in pieces; execute must return one text"),
    ],
)
def test_a_result_without_a_text_is_an_error_that_names_it(result: Any, words: str) -> None:
    assert given(result) == (False, f"Tool execution error: {words}")
