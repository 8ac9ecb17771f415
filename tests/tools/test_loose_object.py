"""Objects as Gemma 4 writes them."""

from __future__ import annotations

from typing import Any

import pytest

from midthought.tools.call_formats.loose_object import read_loose, write_loose

QUOTE = '<|"|>'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ({"b": 'a "b" {c}, [d]: 水\n', "A": 1}, 'A:1,b:<|"|>a "b" {c}, [d]: 水\n<|"|>'),
        ({"x": [True, False, None, -1.5, "12", []], "y": {"z": {"w": "true"}}}, None),
        ({"": 1}, None),
    ],
    ids=str,
)
def test_a_value_is_read_back(value: dict[str, Any], text: str | None) -> None:
    if "" in value:
        with pytest.raises(ValueError, match="a key or a value is missing"):
            read_loose(write_loose(value, QUOTE), QUOTE)
        return
    written = write_loose(value, QUOTE)
    assert text is None or written.strip("{}") == text.strip("{}")
    assert read_loose(f"{written}<tool_call|>", QUOTE) == (value, len(written))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{a:1", "a comma or } is missing"),
        ('{a:<|"|>b}', "a text is not closed"),
        ("{a:b}", "Expecting value"),
        ("[1]", "the arguments are no object"),
        ("{a:" * 60, "nested too deeply"),
    ],
)
def test_what_is_no_object_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_loose(text, QUOTE)
