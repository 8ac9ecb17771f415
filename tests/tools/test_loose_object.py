"""Objects as Gemma 4 writes them."""

from __future__ import annotations

from typing import Any

import pytest

from midthought.tools.call_formats.not_json import read_loose, write_loose

QUOTE = '<|"|>'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ({"b": 'a "b" {c}, [d]: 水\n', "A": 1}, '{A:1,b:<|"|>a "b" {c}, [d]: 水\n<|"|>}'),
        ({"x": [True, False, None, -1.5, "12", []], "y": {"z": {"w": "true"}}}, None),
        ({"a b": "{a:1}", 'c"d\\': ["", ",x:"]}, None),
    ],
    ids=str,
)
def test_a_value_is_read_back(value: dict[str, Any], text: str | None) -> None:
    written = write_loose(value, QUOTE)
    assert text is None or written == text
    assert read_loose(f" {written}<tool_call|>", QUOTE) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{a:1", "Expecting ',' delimiter"),
        ('{a:<|"|>b}', "Expecting ',' delimiter"),
        ("{a:b}", "Expecting value"),
        ("{:1}", "Expecting property name"),
        ("[1]", "no object"),
        ("{a:" * 100_000, "nested too deeply|Expecting"),
    ],
)
def test_what_is_no_object_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_loose(text, QUOTE)
