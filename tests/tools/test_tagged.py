"""Calls between tags: the two formats that use them, the boundaries of a block, its content."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from midthought.tools.call_formats.json_calls import FunctionCallingFormat, HermesFormat, TaggedCallFormat
from midthought.tools.call_formats.json_object import CallObject
from midthought.tools.definition import ToolDefinition, ToolParameter
from midthought.types import ToolCall, ToolEvent, ToolOutcome

HERMES, FUNCTION_CALLING = HermesFormat(), FunctionCallingFormat()
LOOK, SEE = ("look", {"q": 1}), ("see", {})

# O and C stand for the tags, N and P for the keys, A and B for whole objects
OBJECTS = {"A": '{"N": "look", "P": {"q": 1}}', "B": '{"N": "see", "P": {}}'}
SIGNS = {
    HERMES: {"O": "<tool_call>", "C": "</tool_call>", "N": "name", "P": "arguments"},
    FUNCTION_CALLING: {"O": "<function_calls>", "C": "</function_calls>", "N": "tool_name", "P": "parameters"},
}
both = pytest.mark.parametrize("call_format", SIGNS, ids=lambda call_format: call_format.name)


def spelled(call_format: TaggedCallFormat, text: str) -> str:
    """`text` as the call format writes it."""
    text = "".join(OBJECTS.get(character, character) for character in text)
    return "".join(SIGNS[call_format].get(character, character) for character in text)


def found(call_format: TaggedCallFormat, text: str) -> list:
    calls = call_format.parse_all(spelled(call_format, text))
    return [(call.tool_name, dict(call.parameters)) if call.success else call.error for call in calls]


@both
@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("OAC", [LOOK]),
        ("OAC and OBC", [LOOK, SEE]),
        ("O[A, B]C", [LOOK, SEE]),
        ("OA\r\n,\tBAC", [LOOK, SEE, LOOK]),
        ('O[A, {"N": 3}, B]C', [LOOK, '"', SEE]),
        ("O```json\nA\n```C", [LOOK]),
        ("```xml\nOAC\n```", [LOOK]),
        ('O{"N": "see"}C', [SEE]),
        ('O{"N": "look", "P": "{\\"q\\": 1}"}C', [LOOK]),
        ("I write O before it: OAC", [LOOK]),
        ('O{"N": "see", OAC', [LOOK]),
        ("OA", []),
        ("<think>OAC</think> so", []),
        ('O{"N": "see", "P": {"q": "</think>"}}C', []),
        ('O{"N": "see", "P": {"q": "C', ["bad JSON: Unterminated string starting at character"]),
    ],
)
def test_blocks_and_what_is_in_them(call_format: TaggedCallFormat, text: str, calls: list) -> None:
    for call, expected in zip(found(call_format, text), calls, strict=True):
        assert call == expected or (isinstance(call, str) and call.startswith(expected))


@both
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("OC", "no call in it; write "),
        ("Osee itC", "bad JSON: Expecting value at character 1"),
        ("OA}C", "bad JSON: Expecting value at character "),
        ('O"see"C', "a call should be an object, got text; write "),
        ('O{"P": {}}C', 'missing "N"; write {"N": "NAME", "P": {...}}'),
        ('O{"N": 3}C', '"N" should be the name of a tool, got a number; write {"N": "NAME", "P": {...}}'),
        ('O{"N": "see", "P": [1]}C', '"P" should be an object, got a list'),
    ],
)
def test_a_closed_block_that_holds_no_call_says_why(call_format: TaggedCallFormat, text: str, words: str) -> None:
    text = spelled(call_format, text)
    for key in "NP":
        words = words.replace(f'"{key}"', f'"{SIGNS[call_format][key]}"')
    (call,) = call_format.parse_all(f"So {text} it is")
    assert not call.success and call.error is not None and call.error.startswith(words)
    assert call.raw_text == text


@both
def test_calls_are_written_and_tags_in_arguments_escaped(call_format: TaggedCallFormat) -> None:
    parameters = {"q": "".join(spelled(call_format, "O C")) + " </think>", "é": "é"}
    written = call_format.render_call("look", parameters)
    signs = SIGNS[call_format]
    assert [written.count(tag) for tag in (signs["O"], signs["C"], "</think>")] == [1, 1, 0]
    assert "é" in written
    (call,) = call_format.parse_all(written)
    assert call.parameters == parameters
    event = ToolEvent(call=ToolCall(tool_name="look", result="no"), outcome=ToolOutcome.UNKNOWN_TOOL)
    assert call_format.render_results([event]) == "error: no"


def test_the_hermes_instructions_hold_the_schemas_as_these_models_know_them() -> None:
    definition = ToolDefinition("look", "Looks.", [ToolParameter("q", "string", "Was für ein Wort.")])
    text = HERMES.instructions([definition, ToolDefinition("see", "Sees.")])
    block = text[text.index("<tools>\n") : text.index("\n</tools>")].splitlines()
    assert len(block) == 3
    assert block[1].startswith(
        '{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters"'
    )
    assert "Was für ein Wort." in block[1]


def test_a_new_tagged_format_sets_its_tags_and_keys_and_explains_them() -> None:
    class AngleFormat(TaggedCallFormat):
        name = "angle"
        tags = ("<<", ">>")
        call_object = CallObject("run", "with")

        def explain(self, example: str, definitions: Sequence[ToolDefinition]) -> str:
            return f"Write {example}."

    call_format = AngleFormat()
    written = call_format.render_call("look", {"q": "a>>b"})
    assert written.startswith('<<{"run": "look", "with": ') and written.count(">>") == 1
    (call,) = call_format.parse_all(f"<think>{written}</think>So: {written}")
    assert (call.tool_name, call.parameters, call.raw_text) == ("look", {"q": "a>>b"}, written)
    assert call_format.instructions([ToolDefinition("look", "Looks.")]) == 'Write <<{"run": "look", "with": {}}>>.'
