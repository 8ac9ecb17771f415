"""Values between tags (Qwen3-Coder, GLM, MiniMax, Seed-OSS) are text: the tool's schema says which of them are no strings."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from published_templates import PUBLISHED, Published

from midthought import ToolDefinition, tool
from midthought.tokenization import Renderer
from midthought.tools.call_formats.detection import choose_call_format

TAGGED = [published for published in PUBLISHED if published.label in ("qwen3_coder", "glm", "minimax")]


@tool
def order(
    code: str | None,
    size: int | str,
    parts: str | list[str],
    grade: Literal["1", "2"],
    amount: float | None = None,
    is_new: bool | None = None,
) -> str:
    """Orders."""
    return repr((code, size, parts, grade, amount, is_new))


@pytest.mark.parametrize(
    "arguments",
    [
        {"code": "12", "size": 3, "parts": "a", "grade": "1", "amount": 2.5, "is_new": True},
        {"code": "true", "size": "XL", "parts": ["a", "b"], "grade": "2", "amount": None, "is_new": None},
        {"code": None, "size": "3 x 4", "parts": "[a", "grade": "2", "amount": 2, "is_new": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("published", TAGGED, ids=lambda published: published.name)
def test_a_value_of_several_possible_types_is_read_back(published: Published, arguments: dict[str, Any]) -> None:
    call_format = choose_call_format(Renderer(published.tokenizer()), [order.definition]).call_format
    (call,) = call_format.parse_all(call_format.render_call("order", arguments))
    assert call.parameters == arguments
    assert {name: type(value) for name, value in call.parameters.items()} == {
        name: type(value) for name, value in arguments.items()
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"enum": ["12", "13"]},
        {"$ref": "#/$defs/Code"},
        {"anyOf": [{"$ref": "#/$defs/Code"}, {"type": "null"}]},
    ],
    ids=str,
)
def test_digits_are_a_string_if_the_schema_of_a_server_says_so(schema: dict[str, Any]) -> None:
    definition = ToolDefinition(
        "look", "Looks.", {"type": "object", "properties": {"code": schema}, "$defs": {"Code": {"enum": ["12"]}}}
    )
    renderer = Renderer(TAGGED[0].tokenizer())
    call_format = choose_call_format(renderer, [definition]).call_format
    (call,) = call_format.parse_all(call_format.render_call("look", {"code": "12"}))
    assert call.parameters == {"code": "12"}


@pytest.mark.parametrize("published", TAGGED, ids=lambda published: published.name)
def test_a_closing_tag_of_a_thought_is_part_of_the_value_that_holds_it(published: Published) -> None:
    call_format = choose_call_format(Renderer(published.tokenizer()), [order.definition]).call_format
    written = call_format.render_call("order", {"code": "CODE", "size": 1, "parts": "a", "grade": "1"})
    closing = call_format.think_tags[1]
    for text in (written, f"a thought{closing}{written}"):
        (call,) = call_format.read(text.replace("CODE", f"a{closing}b"), in_thought=text != written)
        assert call.parameters["code"] == f"a{closing}b"
