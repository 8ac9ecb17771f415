"""The scanner that finds an object's closing brace, and the strict reader."""

from __future__ import annotations

import pytest

from midthought.tools.call_formats.json_object import BadObjectError, load_object, load_values, write_json


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{a}", "bad JSON: Expecting property name enclosed in double quotes at character 2"),
        ('{"a": NaN}', "bad JSON: NaN is not a JSON value"),
        ('{"a": 1e999}', "bad JSON: the number 1e999 is too large"),
        (r'{"a": "\udc00"}', "bad JSON: half of a surrogate pair"),
        ('{"a": ' + "9" * 5000 + "}", "bad JSON: Exceeds the limit"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, words: str) -> None:
    with pytest.raises(BadObjectError) as caught:
        load_object(text)
    assert str(caught.value).startswith(words)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("text", ['{"a": 1} so', '{"a": NaN}', r'{} ["\ud800"]', "[[" * 100_000, ", {}", "{} }"])
def test_values_are_read_as_strictly_as_an_object(text: str) -> None:
    with pytest.raises(BadObjectError, match="bad JSON"):
        load_values(text)


def test_tags_are_escaped_where_json_is_written() -> None:
    value = {"</a>": "<b></a>\\</a>", "é": ["<a>"]}
    written = write_json(value, ["<a>", "</a>"])
    assert "<a>" not in written and "</a>" not in written and "<b>" in written and "é" in written
    assert load_object(written) == value
