"""The scanner that finds an object's closing brace, and the strict reader."""

from __future__ import annotations

import pytest

from midthought.tools.notations.json_object import BadObjectError, ObjectScanner, load_object


@pytest.mark.parametrize("text", ["{}", '{"a": {"b": 1}}', '{"}": "{"}', r'{"a": "\\\"}"}', '{"a":\n[{}]}', "{a: '}"])
def test_the_last_brace_is_the_one_that_closes(text: str) -> None:
    scanner = ObjectScanner()
    closes = [scanner.feed(character) for character in text]
    assert closes == [False] * (len(text) - 1) + [True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{a}", "bad JSON: Expecting property name enclosed in double quotes at character 2"),
        ("[1]", "bad JSON: should be an object in braces, got list"),
        ('{"a": NaN}', "bad JSON: NaN is not a JSON value"),
        ('{"a": -Infinity}', "bad JSON: -Infinity is not a JSON value"),
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
