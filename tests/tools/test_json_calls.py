"""Calls as JSON objects in a chat turn: which braces or blocks between tags are calls, how an object is read and written."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest
from calling import LOOK, SEE, event, read

from midthought.tools.call_formats.json_calls import FunctionCallingFormat, HermesFormat, JSONFormat, TaggedCallFormat
from midthought.tools.call_formats.json_object import CallObject
from midthought.tools.definition import ToolDefinition, ToolParameter
from midthought.types import ToolOutcome

# -- anywhere in the text --------------------------------------------------------------------------------------

JSON = JSONFormat()
A = '{"tool": "look", "parameters": {"q": 1}}'
B = '{"tool": "see", "parameters": {}}'


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
def test_these_objects_are_calls_and_others_are_none(text: str, calls: list) -> None:
    assert read(JSON, text) == calls


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
    (call,) = JSON.parse_all(f"So: {text} {B}")[:-1]
    assert not call.success and call.raw_text == text and call.parameters == {}
    assert call.tool_name == (None if words.startswith("bad JSON") else "look")
    assert call.error is not None and call.error.startswith(words)


@pytest.mark.parametrize(
    "text", ['{"' + 20_000 * '\\"', 20_000 * '{"a": ' + A + 20_000 * "}", 20_000 * '{"a": ' + '"tool"' + 20_000 * "}"]
)
def test_the_time_of_reading_grows_with_the_length_only(text: str) -> None:
    started = time.perf_counter()
    JSON.parse_all(text)
    assert time.perf_counter() - started < 2  # a quadratic search takes 5 s and more


# -- between tags: O and C stand for the tags, N and P for the keys, A and B for whole objects -----------------

OBJECTS = {"A": '{"N": "look", "P": {"q": 1}}', "B": '{"N": "see", "P": {}}'}
SIGNS = {
    HermesFormat(): {"O": "<tool_call>", "C": "</tool_call>", "N": "name", "P": "arguments"},
    FunctionCallingFormat(): {"O": "<function_calls>", "C": "</function_calls>", "N": "tool_name", "P": "parameters"},
}
both = pytest.mark.parametrize("call_format", SIGNS, ids=lambda call_format: call_format.name)


def spelled(call_format: TaggedCallFormat, text: str) -> str:
    """`text` as the call format writes it."""
    text = "".join(OBJECTS.get(character, character) for character in text)
    return "".join(SIGNS[call_format].get(character, character) for character in text)


@both
@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("O[A, B]C", [LOOK, SEE]),
        ("OA\r\n,\tBAC", [LOOK, SEE, LOOK]),
        ('O[A, {"N": 3}, B]C', [LOOK, '"', SEE]),
        ("O```json\nA\n```C", [LOOK]),
        ('O{"N": "see"}C', [SEE]),
        ('O{"N": "look", "P": "{\\"q\\": 1}"}C', [LOOK]),
        ("I write O before it: OAC", [LOOK]),
        ('O{"N": "see", OAC', [LOOK]),
        ('O{"N": "see", "P": {"q": "</think>"}}C', []),
        ('O{"N": "see", "P": {"q": "C', ["bad JSON: Unterminated string starting at character"]),
    ],
)
def test_blocks_and_what_is_in_them(call_format: TaggedCallFormat, text: str, calls: list) -> None:
    for call, expected in zip(read(call_format, spelled(call_format, text)), calls, strict=True):
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
    assert [written.count(tag) for tag in (*call_format.tags, "</think>", "é")] == [1, 1, 0, 2]
    assert read(call_format, written) == [("look", parameters)]
    assert call_format.render_results([event("no", ToolOutcome.UNKNOWN_TOOL)]) == "error: no"


def test_the_hermes_instructions_hold_the_schemas_as_these_models_know_them() -> None:
    definition = ToolDefinition("look", "Looks.", [ToolParameter("q", "string", "Was für ein Wort.")])
    text = HermesFormat().instructions([definition, ToolDefinition("see", "Sees.")])
    _, look, see = text[text.index("<tools>\n") : text.index("\n</tools>")].splitlines()
    begin = '{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters"'
    assert look.startswith(begin) and "Was für ein Wort." in look and '"see"' in see


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
