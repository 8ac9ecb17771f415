"""Calls in Python's syntax."""

import pytest

from midthought.tools.call_formats.not_json import read_python_calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[add(a=1, b=-2.5), say(text="x\\ny")]', [("add", {"a": 1, "b": -2.5}), ("say", {"text": "x\ny"})]),
        (" [tools.add(a=[1, (2, 3)])] ", [("tools.add", {"a": [1, [2, 3]]})]),
        ("[stop()]", [("stop", {})]),
        ("look(a='x')\nsay(text='y', b=1)", [("look", {"a": "x"}), ("say", {"text": "y", "b": 1})]),
    ],
)
def test_literals_are_read(text: str, calls: list) -> None:
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
def test_everything_else_is_an_error_for_the_model(text: str, error: str) -> None:
    (call,) = read_python_calls(text, text)
    assert not call.success
    assert call.error is not None
    assert call.error.startswith(error.replace("\\", ""))
