"""Types of parameters: their JSON Schema, and the arguments that the function gets for JSON values."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal, NewType

import numpy
import pytest
from pydantic import BaseModel, Field, field_validator

from midthought import ToolRegistry, tool
from midthought.tools.function_tool import FunctionTool

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


def run(made: FunctionTool[..., Any], **arguments: Any) -> tuple[bool, str]:
    return ToolRegistry([made]).execute_tool(made.definition.name, **arguments)


def schemas(made: FunctionTool[..., Any]) -> dict[str, Any]:
    return made.definition.parameters_schema()["properties"]


@tool
def alternatives(value: int | str, words: str | list[int], item: Book | Disc | None = None) -> str:
    """Alternatives."""
    return repr((value, words, item))


def test_a_union_takes_the_first_type_that_the_value_fits() -> None:
    assert schemas(alternatives)["value"] == {"anyOf": [{"type": "integer"}, {"type": "string"}], "description": ""}
    assert run(alternatives, value=3.0, words=[1.0]) == (True, "(3, [1], None)")
    assert run(alternatives, value="3", words="a", item={"minutes": 2}) == (True, "('3', 'a', Disc(minutes=2))")
    book = run(alternatives, value=1, words=[], item={"ISBN": "12"})
    assert book == (True, "(1, [], Book(kind='book', pages=1, isbn='12', tags=[]))")
    wrong = run(alternatives, value=1.5, words="a")
    assert wrong == (False, "argument 'value' should be an integer or a string, got 1.5")
    assert not run(alternatives, value=1, words="a", item={"name": "a"})[0]


@tool
def several(
    pair: tuple[float, float],
    row: tuple[str, int],
    words: Iterable[str],
    seen: AbstractSet[int],
    rates: Mapping[str, float],
    user: UserId,
) -> str:
    """Several."""
    return repr((pair, row, words, seen, rates, user))


def test_tuples_of_a_fixed_length_sets_and_new_types() -> None:
    shown = schemas(several)
    assert shown["pair"] == {
        "type": "array",
        "prefixItems": [{"type": "number"}, {"type": "number"}],
        "minItems": 2,
        "maxItems": 2,
        "description": "",
    }
    assert shown["row"]["prefixItems"] == [{"type": "string"}, {"type": "integer"}]
    given = {"row": ["a", 1], "words": ["b"], "seen": [1, 1], "rates": {"x": 1}, "user": 4}
    expected = "((1.0, 2.0), ('a', 1), ['b'], frozenset({1}), {'x': 1.0}, 4)"
    assert run(several, pair=[1, 2], **given) == (True, expected)
    assert run(several, pair=[1], **given) == (False, "argument 'pair' should have a length of at least 2, got [1]")


@tool
def look(
    day: datetime.date,
    when: datetime.datetime | None = None,
    path: pathlib.Path = pathlib.Path("a"),
    price: decimal.Decimal = decimal.Decimal("0.1"),
) -> str:
    """Looks."""
    return f"{day!r} {when!r} {path.name} {price!r}"


def test_dates_paths_and_decimals_are_texts() -> None:
    assert schemas(look)["day"] == {"type": "string", "format": "date", "description": ""}
    found = run(look, day="2024-05-06", when="2024-05-06T07:08", path="x/y", price=2.5)
    assert found == (True, "datetime.date(2024, 5, 6) datetime.datetime(2024, 5, 6, 7, 8) y Decimal('2.5')")
    is_ok, message = run(look, day="yesterday")
    assert not is_ok and "'yesterday'" in message


@tool
def limited(
    count: Annotated[int, Field(ge=1, le=5, description="How many.")],
    name: Annotated[str, Field(min_length=2, pattern="^a")] = "ab",
    size: Annotated[int, Field(gt=0, description="How large.")] = 3,
) -> str:
    """Limited."""
    return repr((count, name, size))


def test_limits_and_descriptions_of_fields_are_in_the_schema_and_checked() -> None:
    assert schemas(limited)["count"] == {"type": "integer", "minimum": 1, "maximum": 5, "description": "How many."}
    assert schemas(limited)["size"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "description": "How large.",
        "default": 3,
    }
    assert limited.definition.parameters_schema()["required"] == ["count"]
    assert run(limited, count=1) == (True, "(1, 'ab', 3)")
    assert run(limited, count=9) == (False, "argument 'count' should be at most 5, got 9")
    assert run(limited, count=1, name="a")[1] == "argument 'name' should have a length of at least 2, got 'a'"


@tool
def keep(book: Book) -> str:
    """Keeps."""
    return repr(book)


def test_a_model_has_its_aliases_limits_and_descriptions_and_its_errors_are_one_line() -> None:
    shown = schemas(keep)["book"]
    assert shown["properties"]["pages"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 5000,
        "description": "Number of pages.",
        "default": 1,
    }
    assert shown["properties"]["tags"]["description"] == "What it is about."
    assert (shown["required"], shown["properties"]["tags"]["maxItems"]) == (["ISBN"], 2)
    assert run(keep, book={"ISBN": "12", "tags": ["a"]}) == (True, "Book(kind='book', pages=1, isbn='12', tags=['a'])")
    assert run(keep, book={"ISBN": "a"})[1] == "argument 'book.ISBN': String should match pattern '^\\d+$', got 'a'"
    assert run(keep, book={"ISBN": "10"})[1] == "argument 'book.ISBN': Value error, a zero, got '10'"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"a": "ü", "b": [1, None]}, '{"a": "ü", "b": [1, null]}'),
        (Book(ISBN="12"), '{"kind":"book","pages":1,"isbn":"12","tags":[]}'),
        ({"a": {1, 2}}, '{"a": [1, 2]}'),
        (
            {"colour": enum.Enum("Colour", {"RED": "red"}).RED, "day": datetime.date(2026, 1, 2)},
            '{"colour": "red", "day": "2026-01-02"}',
        ),
        ([Disc(3), Book(ISBN="12")], '[{"minutes": 3}, {"kind": "book", "pages": 1, "isbn": "12", "tags": []}]'),
        ({"mean": numpy.float64(0.5), "all": numpy.array([1, 2])}, '{"mean": 0.5, "all": [1, 2]}'),
        ([{*"hgfedcba"}], '[["a", "b", "c", "d", "e", "f", "g", "h"]]'),
        ({*"hgfedcba"}, '["a", "b", "c", "d", "e", "f", "g", "h"]'),
        (None, "None"),
        ("é".encode(), "é"),
        ("<object at 0x7f>", "<object at 0x7f>"),
    ],
)
def test_results_that_have_parts_are_json_for_the_model(result: Any, text: str) -> None:
    @tool
    def give() -> Any:
        """Gives."""
        return result

    assert run(give) == (True, text)


def test_a_result_without_a_text_is_an_error_that_names_it() -> None:
    results = [b"\x89PNG", object(), [1, object()]]

    @tool
    def give(number: int) -> Any:
        """Gives."""
        return results[number]

    for number, what in enumerate(["bytes that are no text", *["an object without a text, <object object>"] * 2]):
        said = f"Tool execution error: the tool returned {what}; execute must return a text, or what JSON can write"
        assert run(give, number=number) == (False, said)
