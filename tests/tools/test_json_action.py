"""Calls as JSON objects in a chat turn: which braces are a call, and how an object is read."""

from __future__ import annotations

import json
import time

import pytest

from midthought.tools.call_formats.json_calls import JSONFormat

CALL_FORMAT = JSONFormat()
A = '{"tool": "look", "parameters": {"q": 1}}'
B = '{"tool": "see", "parameters": {}}'
LOOK, SEE = ("look", {"q": 1}), ("see", {})


def found(text: str) -> list[tuple[str | None, dict] | str | None]:
    calls = CALL_FORMAT.parse_all(text)
    return [(call.tool_name, dict(call.parameters)) if call.success else call.error for call in calls]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"I call `{A}` now.", [LOOK]),
        (f"[{A}, {B}]", [LOOK, SEE]),
        (f'{{"actions": [{A}, {B}]}}', [LOOK, SEE]),
        (f'{{"thought": "hm", "action": {A}}}', [LOOK]),
        (f"{{x | x > 0}} {{a: 1}} ${{HOME}} {{}} {A}", [LOOK]),
        (f'We open {{ and say "hm.\n{A} and {{ and {B}', [LOOK, SEE]),
        (f"{{ {A} [{B}] {A}", [LOOK, SEE, LOOK]),
        ('{"parameters": {"tool": "see"}, "tool": "look"}', [("look", {"tool": "see"})]),
        (f'{{"tool": "look", "parameters": {{"q": {B}}}}}', [("look", {"q": json.loads(B)})]),
        ('{"tool": "look", "parameters": "{\\"q\\": 1}"}', [LOOK]),
        ('{"name": "look", "parameters": {}}', []),
        ('{"answer": "{\\"tool\\": \\"look\\"}"}', []),
        ('tool: "look", "tool": "look"', []),
        (f'{{"tool": "look", "parameters": {{"q": 1}} and then {B}', []),
    ],
)
def test_these_are_calls_and_others_are_none(text: str, calls: list) -> None:
    assert found(text) == calls


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{'tool': 'look', 'parameters': {}}", "bad JSON: Expecting property name enclosed in double quotes"),
        ('{"tool": "look", "args": {"q": 1}}', 'missing "parameters"; write {"tool": "NAME", "parameters": {...}}'),
        ('{"tool": "look", "parameters": "tide"}', '"parameters" should be an object, got text (bad JSON: '),
        ('{"id": 1, "tool": "look", "parameters": {"q": "two\nlines}"}}', "bad JSON: Invalid control character"),
    ],
)
def test_a_call_that_cannot_be_run_says_why(text: str, words: str) -> None:
    (call,) = CALL_FORMAT.parse_all(f"So: {text} {B}")[:-1]
    assert not call.success and call.raw_text == text and call.parameters == {}
    assert call.tool_name == (None if words.startswith("bad JSON") else "look")
    assert call.error is not None and call.error.startswith(words)


@pytest.mark.parametrize(
    "text", ['{"' + 20_000 * '\\"', 20_000 * '{"a": ' + A + 20_000 * "}", 20_000 * '{"a": ' + '"tool"' + 20_000 * "}"]
)
def test_the_time_of_reading_grows_with_the_length_only(text: str) -> None:
    started = time.perf_counter()
    CALL_FORMAT.parse_all(text)
    assert time.perf_counter() - started < 2  # a quadratic search takes 5 s and more
