"""Which tag a text has just completed, and whether a thought is open."""

from __future__ import annotations

import random

import pytest

from midthought.tools.call_formats import begins_in_thought
from midthought.tools.call_formats.in_thought import InThoughtFormat

TAGS = ("<think>", "</think>")
CALL = "#call look {}"


@pytest.mark.parametrize("tags", [TAGS, ("aab", "abb"), ("<<<a", "<b")])
def test_tags_are_found_as_a_plain_search_finds_them(tags: tuple[str, str]) -> None:
    rng = random.Random(0)
    num_found = 0
    for _ in range(500):
        scanner = InThoughtFormat("inside", *tags).scanner(in_thought=False)
        text, begin, in_thought = "".join(rng.choices([*tags, *"".join(tags), "x"], k=30)), 0, False
        for end, character in enumerate(text, 1):
            scanner.feed(character)
            if found := next((tag for tag in tags if text[begin:end].endswith(tag)), None):
                begin, num_found, in_thought = end, num_found + 1, found == tags[0]
        assert scanner.feed(f" {CALL}") == in_thought, text
    assert num_found > 500


def test_a_tag_that_only_began_is_forgotten_after_a_result() -> None:
    scanner = InThoughtFormat().scanner(in_thought=False)
    scanner.feed("<thi")
    scanner.resume()
    assert [scanner.feed(f"{text} {CALL}") for text in ("nk>", "<think>")] == [False, True]


@pytest.mark.parametrize(
    ("text", "begins"),
    [("so</think>", True), ("</think><think>", True), ("<think></think>", False), ("<think>", False), ("so", False)],
)
def test_the_first_tag_shows_whether_the_prompt_opened_the_thought(text: str, begins: bool) -> None:
    assert begins_in_thought(text, TAGS) is begins
