"""Error messages for arguments that do not fit a JSON Schema: the location and the expected value in one short line."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midthought.errors import SettingsError
from midthought.tools.arguments import ArgumentsChecker, ArgumentsError

TRIP = {
    "type": "object",
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    "properties": {
        "stops": {"type": "array", "items": {"$ref": "#/$defs/place"}, "minItems": 1, "maxItems": 2},
        "code": {"type": "string", "maxLength": 9},
        "name": {"type": ["string", "null"], "minLength": 2},
        "seats": {"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 2},
        "price": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 100},
        "class": {"enum": ["first", "second", 3]},
        "mode": {"const": "rail"},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "contains": {"const": "a"}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        "extras": {"type": "object", "additionalProperties": False, "properties": {"pet": {}, "bike": {}}},
        "sizes": {"type": "object", "propertyNames": {"maxLength": 1}, "maxProperties": 1},
        "needs": {"type": "object", "dependentRequired": {"card": ["address"]}},
        "when": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "payment": {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": "card"}, "number": {"type": "string"}}},
                {
                    "type": "object",
                    "properties": {"kind": {"const": "cash"}, "coins": {"type": "integer"}},
                    "required": ["kind"],
                },
            ]
        },
        "either": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        "never": False,
        "not_x": {"not": {"const": "x"}},
    },
    "additionalProperties": False,
}


def complaint(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    with pytest.raises(ArgumentsError) as caught:
        ArgumentsChecker(schema).check(arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stops": [{"city": "Rome"}, {}]}, "argument 'stops[1]' is missing 'city'"),
        ({"stops": []}, "argument 'stops' should have a length of at least 1, got []"),
        ({"stops": [{"city": "a"}] * 3}, "argument 'stops' should have a length of at most 2, got [{'city': 'a'}, "),
        ({"code": "R" * 10}, "argument 'code' should have a length of at most 9, got 'RRRRRRRRRR'"),
        ({"name": ""}, "argument 'name' should have a length of at least 2, got ''"),
        ({"seats": 0}, "argument 'seats' should be at least 1, got 0"),
        ({"seats": 3}, "argument 'seats' should be a multiple of 2, got 3"),
        ({"price": 0}, "argument 'price' should be more than 0, got 0"),
        ({"class": "third"}, "argument 'class' should be one of 'first', 'second', 3, got 'third'"),
        ({"mode": "air"}, "argument 'mode' should be 'rail', got 'air'"),
        ({"tags": ["a", "a"]}, "argument 'tags' should fit uniqueItems True, got ['a', 'a']"),
        ({"tags": ["b"]}, "argument 'tags' should fit contains {'const': 'a'}, got ['b']"),
        ({"pair": ["a", 1, 2]}, "argument 'pair' should fit items False, got ['a', 1, 2]"),
        ({"extras": {"cat": 1}}, "argument 'extras' has an unknown key 'cat'; there is: pet, bike"),
        ({"sizes": {"XL": 1}}, "a key of argument 'sizes' should have a length of at most 1, got 'XL'"),
        ({"sizes": {"a": 1, "b": 2}}, "argument 'sizes' should fit maxProperties 1, got {'a': 1, 'b': 2}"),
        (
            {"needs": {"card": "1"}},
            "argument 'needs' should fit dependentRequired {'card': ['address']}, got {'card': '1'}",
        ),
        ({"when": []}, "argument 'when' should be a string or an integer, got []"),
        ({"payment": {"kind": "cash", "coins": "x"}}, "argument 'payment.coins' should be an integer, got 'x'"),
        ({"either": 5}, "argument 'either' should fit oneOf [{'type': 'number'}, {'type': 'integer'}], got 5"),
        ({"never": 1}, "1 is not allowed"),
        ({"not_x": "x"}, "argument 'not_x' should fit not {'const': 'x'}, got 'x'"),
    ],
)
def test_every_kind_of_mistake_names_its_place_and_what_is_expected(arguments: dict[str, Any], words: str) -> None:
    assert complaint(TRIP, arguments).startswith(words)


HUNDRED = {"properties": {f"p{number}": {} for number in range(100)}, "additionalProperties": False}
FIRST_MISSING = {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["b"]}
EITHER = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
OLDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "definitions": {
        "b": {"$id": "#whole", "type": "integer"},
        "pair": {"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False},
    },
    "properties": {"pair": {"$ref": "#/definitions/pair"}, "a": {"$ref": "#whole"}},
}
TREE = {
    "$defs": {"tree": {"properties": {"left": {"$ref": "#/$defs/tree"}, "leaf": {"type": "integer"}}}},
    "properties": {"tree": {"$ref": "#/$defs/tree"}},
}


@pytest.mark.parametrize(
    ("schema", "arguments", "words"),
    [
        (HUNDRED, {"q": 1}, "unknown argument 'q'; there is: p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, …"),
        (FIRST_MISSING, {"a": 1}, "missing argument 'b'"),
        (EITHER, {}, "missing argument 'a' or 'b'"),
        (OLDER, {"pair": [1, 2]}, "argument 'pair[1]' should be a string, got 2"),
        (OLDER, {"pair": [1, "a", 2]}, "argument 'pair' should fit additionalItems False, got [1, 'a', 2]"),
        (OLDER, {"a": "x"}, "argument 'a' should be an integer, got 'x'"),
        (TREE, {"tree": {"left": {"leaf": "x"}}}, "argument 'tree.left.leaf' should be an integer, got 'x'"),
    ],
)
def test_unknown_and_missing_arguments_older_dialects_and_references_are_told_in_their_words(
    schema: dict[str, Any], arguments: dict[str, Any], words: str
) -> None:
    assert complaint(schema, arguments) == words


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        *(
            ({"properties": {"a": {"items": {"$ref": reference}}}}, "cannot be resolved")  # nothing is fetched
            for reference in ("https://example.org/schema.json", "#/$defs/none", "file:///etc/passwd")
        ),
        ({"properties": {"a": {"type": "strin"}}}, "invalid JSON Schema: 'strin' is not valid"),
        ({"$id": "http://[", "type": "object"}, r"an \$id is no address"),
        ({"$schema": 5}, r"\$schema is 5; give its address"),
        ({"$defs": {"b": {}}, "properties": {"a": {"$id": "x", "items": {"$ref": "#/$defs/b"}}}}, "cannot be resolved"),
        (
            {"$id": "http://a/", "$ref": "#/x-part", "x-part": {"properties": {"a": {"$id": "http://["}}}},
            r"an \$id is no address",
        ),
        ({"$ref": "#/x-part", "x-part": {"not": {"$ref": "#/$defs/b"}}}, "'#/\\$defs/b' cannot be resolved"),
        ({"$ref": "#/required", "required": ["a"]}, r"\['a'\] is not of type 'object', 'boolean'"),
    ],
)
def test_no_valid_schema_is_refused_with_its_mistake(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        ArgumentsChecker(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"x-source": {"$id": "other", "$ref": "#/$defs/b"}, "$ref": "#/$defs/b"},
        {
            "$id": "dir/s",
            "$defs": {"b": {"$id": "item", "$defs": {"c": {}}}},
            "properties": {"a": {"$ref": "item#/$defs/c"}},
        },
        {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"id": {"$ref": "#/$defs/b"}}},
    ],
    ids=["of a foreign keyword", "below an id", "a property named id"],
)
def test_a_reference_is_read_as_the_validator_reads_it(schema: dict[str, Any]) -> None:
    ArgumentsChecker({"$defs": {"b": {}}, **schema}).check({"a": 1, "id": 1})


def test_a_schema_that_never_ends_is_refused_at_any_depth_of_the_stack() -> None:
    schema = {"$defs": {"c": {"not": {"$ref": "#/$defs/c"}}}, "properties": {"a": {"$ref": "#/$defs/c"}}}

    def told(depth: int) -> str:
        return told(depth - 1) if depth else complaint(schema, {"a": 1})

    assert {told(depth) for depth in range(40)} == {"the arguments are nested too deeply"}


@pytest.mark.parametrize("pattern", [r"^\p{L}+$", "(?<year>[0-9]+)", "^(a|aa)+$"], ids=["JavaScript", "group", "slow"])
def test_patterns_are_left_to_the_tool_and_all_other_rules_hold(pattern: str) -> None:
    schema = {
        "properties": {"b": {"type": "integer"}, "c": {"type": "string", "pattern": pattern}},
        "patternProperties": {pattern: {"type": "integer"}},
        "required": ["b"],
        "minProperties": 2,
    }
    ArgumentsChecker(schema).check({"b": 1, "c": "a" * 60 + "!", "x": "x"})
    assert complaint(schema, {"x": 1}) == "missing argument 'b'"
    assert complaint(schema, {"b": "x", "c": "c"}) == "argument 'b' should be an integer, got 'x'"
    assert complaint(schema, {"b": 1}) == "the arguments object should fit minProperties 2, got {'b': 1}"


def test_arguments_nested_without_end_are_refused_in_words() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    schema = {"$defs": {"list": {"items": {"$ref": "#/$defs/list"}}}, "properties": {"a": {"$ref": "#/$defs/list"}}}
    assert complaint(schema, {"a": nested}) == "the arguments are nested too deeply, at most 64 levels"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*TRIP["properties"], "other"]), JSON_VALUES, max_size=3))
def test_a_complaint_is_made_exactly_where_jsonschema_finds_a_mistake_and_it_is_one_short_line(
    arguments: dict[str, Any],
) -> None:
    is_valid = jsonschema.Draft202012Validator(TRIP).is_valid(arguments)
    try:
        ArgumentsChecker(TRIP).check(arguments)
    except ArgumentsError as error:
        assert not is_valid and len(str(error)) < 250 and "\n" not in str(error)
    else:
        assert is_valid
