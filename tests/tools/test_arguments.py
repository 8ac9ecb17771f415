"""Error messages for arguments that do not fit a JSON Schema: the location and the expected value in one short line."""

from __future__ import annotations

import contextlib
import time
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
        "code": {"type": "string", "pattern": "^[A-Z]{3}$", "maxLength": 9},
        "name": {"type": ["string", "null"], "minLength": 2},
        "seats": {"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 2},
        "price": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 100},
        "class": {"enum": ["first", "second", 3]},
        "mode": {"const": "rail"},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "contains": {"const": "a"}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
        "extras": {"type": "object", "additionalProperties": False, "properties": {"pet": {}, "bike": {}}},
        "sizes": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "maxProperties": 1},
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
        ({"stops": []}, "argument 'stops' should have at least 1 item, got 0"),
        ({"stops": [{"city": "a"}] * 3}, "argument 'stops' should have at most 2 items, got 3"),
        ({"code": "rom"}, "argument 'code' should match the pattern '^[A-Z]{3}$', got 'rom'"),
        ({"name": ""}, "argument 'name' should have at least 2 characters, got ''"),
        ({"seats": 0}, "argument 'seats' should be at least 1, got 0"),
        ({"seats": 3}, "argument 'seats' should be a multiple of 2, got 3"),
        ({"price": 0}, "argument 'price' should be more than 0, got 0"),
        ({"class": "third"}, "argument 'class' should be one of 'first', 'second', 3, got 'third'"),
        ({"mode": "air"}, "argument 'mode' should be 'rail', got 'air'"),
        ({"tags": ["a", "a"]}, "argument 'tags' should not hold an item twice, got ['a', 'a']"),
        ({"tags": ["b"]}, "argument 'tags' should hold an item that fits {'const': 'a'}, got ['b']"),
        ({"pair": ["a", 1, 2]}, "argument 'pair' has too many items, got 3"),
        ({"extras": {"cat": 1}}, "argument 'extras' has an unknown key 'cat'; there is: pet, bike"),
        ({"sizes": {"XL": 1}}, "a key of argument 'sizes' should match the pattern '^[a-z]+$', got 'XL'"),
        ({"sizes": {"a": 1, "b": 2}}, "argument 'sizes' should have at most 1 key, got 2"),
        ({"needs": {"card": "1"}}, "argument 'needs' should have 'address' if it has 'card'"),
        ({"when": []}, "argument 'when' should be a string or an integer, got []"),
        ({"payment": {"kind": "cash", "coins": "x"}}, "argument 'payment.coins' should be an integer, got 'x'"),
        ({"either": 5}, "argument 'either' fits several of the allowed forms, it should fit one; got 5"),
        ({"never": 1}, "1 is not allowed"),
        ({"not_x": "x"}, "argument 'not_x' is not allowed to be 'x'"),
    ],
)
def test_every_kind_of_mistake_names_its_place_and_what_is_expected(arguments: dict[str, Any], words: str) -> None:
    assert complaint(TRIP, arguments) == words


def test_what_is_right_passes() -> None:
    ArgumentsChecker(TRIP).check({"stops": [{"city": "Rome"}], "code": "ROM", "name": None, "seats": 2.0, "when": 1})


def test_unknown_arguments_are_told_with_the_known_ones_but_not_a_hundred_of_them() -> None:
    schema = {"properties": {f"p{number}": {} for number in range(100)}, "additionalProperties": False}
    assert complaint(schema, {"q": 1}) == (
        "unknown argument 'q'; there is: p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, …"
    )


def test_a_missing_argument_comes_before_all_others_and_alternatives_are_named_together() -> None:
    schema = {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["b"]}
    assert complaint(schema, {"a": 1}) == "missing argument 'b'"
    either = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert complaint(either, {}) == "missing argument 'a' or 'b'"


def test_an_older_dialect_is_checked_by_its_own_rules() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {
            "b": {"$id": "#whole", "type": "integer"},
            "pair": {"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False},
        },
        "properties": {"pair": {"$ref": "#/definitions/pair"}, "a": {"$ref": "#whole"}},
    }
    assert complaint(schema, {"pair": [1, 2]}) == "argument 'pair[1]' should be a string, got 2"
    assert complaint(schema, {"a": "x"}) == "argument 'a' should be an integer, got 'x'"
    assert complaint(schema, {"pair": [1, "a", 2]}) == "argument 'pair' has too many items, got 3"


@pytest.mark.parametrize("reference", ["https://example.org/schema.json", "#/$defs/none", "file:///etc/passwd"])
def test_a_reference_out_of_the_schema_is_refused_and_nothing_is_fetched(reference: str) -> None:
    with pytest.raises(SettingsError, match="cannot be resolved"):
        ArgumentsChecker({"properties": {"a": {"items": {"$ref": reference}}}})


def test_a_schema_that_refers_to_itself_is_followed() -> None:
    schema = {"properties": {"tree": {"$ref": "#/$defs/tree"}}}
    schema["$defs"] = {"tree": {"properties": {"left": {"$ref": "#/$defs/tree"}, "leaf": {"type": "integer"}}}}
    assert complaint(schema, {"tree": {"left": {"left": {"leaf": "x"}}}}) == (
        "argument 'tree.left.left.leaf' should be an integer, got 'x'"
    )


def test_no_valid_schema_is_refused_with_its_mistake() -> None:
    with pytest.raises(SettingsError, match="invalid JSON Schema: 'strin' is not valid"):
        ArgumentsChecker({"properties": {"a": {"type": "strin"}}})


def test_a_javascript_pattern_that_python_cannot_read_is_left_to_the_tool() -> None:
    checker = ArgumentsChecker(
        {"properties": {"a": {"type": "string", "pattern": "^[^]+$"}}, "patternProperties": {"[^]": {"type": "string"}}}
    )
    checker.check({"a": "anything"})


@pytest.mark.parametrize("unreadable", [r"^\p{L}+$", "(?<year>[0-9]+)"])
def test_an_unreadable_pattern_of_keys_is_left_to_the_tool_and_all_other_rules_hold(unreadable: str) -> None:
    schema = {
        "properties": {"b": {"type": "integer"}},
        "patternProperties": {unreadable: {"type": "integer"}, "^n_": {"type": "number"}},
        "required": ["b"],
        "minProperties": 2,
    }
    assert complaint(schema, {"x": 1}) == "missing argument 'b'"
    assert complaint(schema, {"b": "x", "c": 1}) == "argument 'b' should be an integer, got 'x'"
    assert complaint(schema, {"b": 1, "n_a": "x"}) == "argument 'n_a' should be a number, got 'x'"
    assert complaint(schema, {"b": 1}) == "the arguments object should have at least 2 keys, got 1"
    for rest in ({"additionalProperties": False}, {"unevaluatedProperties": False}):
        ArgumentsChecker({**schema, **rest}).check({"b": 1, "x": 1})
        assert complaint({**schema, **rest}, {"x": 1}) == "missing argument 'b'"


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


SLOW_PATTERNS = ["^(a|aa)+$", "(?:a?){200}a{200}", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(?=(a+))\1{9}" * 3, "(a" * 3000]
SLOW_TEXT = "a" * 60 + "!"


def test_no_pattern_of_an_argument_can_stop_the_program() -> None:
    """With `re`, most of these take longer than a day."""
    for pattern in SLOW_PATTERNS:
        with contextlib.suppress(ArgumentsError):
            ArgumentsChecker({"properties": {"a": {"pattern": pattern}}}).check({"a": SLOW_TEXT})


def test_the_patterns_of_one_call_share_a_time_limit_and_the_other_rules_still_hold() -> None:
    items = {"type": "array", "items": {"pattern": "^(a|aa)+$"}}
    checker = ArgumentsChecker({"properties": {"a": items, "b": {"type": "integer"}}})
    started = time.perf_counter()
    for _ in range(2):
        with pytest.raises(ArgumentsError, match="argument 'b' should be an integer"):
            checker.check({"a": [SLOW_TEXT] * 40, "b": "x"})
    assert time.perf_counter() - started < 1.5
    with pytest.raises(ArgumentsError, match="should match the pattern"):  # the next check has its own time
        checker.check({"a": ["b"]})


def test_an_address_that_is_none_is_named() -> None:
    with pytest.raises(SettingsError, match=r"an \$id is no address"):
        ArgumentsChecker({"$id": "http://[", "type": "object"})
