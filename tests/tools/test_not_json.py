"""Calls that are not JSON: objects as Gemma 4 writes them, and calls in Python's syntax."""

from __future__ import annotations

from typing import Any

import pytest

from midthought.tools.call_formats.not_json import read_loose, read_python_calls, write_loose

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


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[add(a=1, b=-2.5), say(text="x\\ny")]', [("add", {"a": 1, "b": -2.5}), ("say", {"text": "x\ny"})]),
        (" [tools.add(a=[1, (2, 3)])] ", [("tools.add", {"a": [1, [2, 3]]})]),
        ("[stop()]", [("stop", {})]),
        ("look(a='x')\nsay(text='y', b=1)", [("look", {"a": "x"}), ("say", {"text": "y", "b": 1})]),
    ],
)
def test_python_literals_are_read(text: str, calls: list) -> None:
    found = read_python_calls(text, text)
    assert [(call.tool_name, call.parameters) for call in found] == calls
    assert all(call.success for call in found)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[add(a=1", r"not a Python call \(SyntaxError\)"),
        ("[add(1)]", "every argument needs its name"),
        ("[add(a=open('x'))]", "an argument is not a value that JSON has"),
        ("[(lambda: 1)()]", "not a Python call"),
        ("[add(a='\\ud800')]", "an argument is not a value that JSON has"),
    ],
)
def test_what_is_no_python_call_is_an_error_for_the_model(text: str, error: str) -> None:
    (call,) = read_python_calls(text, text)
    assert not call.success
    assert call.error is not None
    assert call.error.startswith(error.replace("\\", ""))
