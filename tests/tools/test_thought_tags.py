"""Which tag a text has just completed, and whether a thought is open."""

from __future__ import annotations

import random

import pytest

from midthought.tools.call_formats.thought_tags import ThoughtTracker, begins_in_thought

TAGS = ("<think>", "</think>")


@pytest.mark.parametrize("tags", [TAGS, ("aab", "abb"), ("<<<a", "<b")])
def test_tags_are_found_as_a_plain_search_finds_them(tags: tuple[str, str]) -> None:
    rng = random.Random(0)
    num_found = 0
    for _ in range(500):
        text = "".join(rng.choices([*tags, *"".join(tags), "x"], k=30))
        tracker, begin = ThoughtTracker(tags, in_thought=False), 0
        for end, character in enumerate(text, 1):
            expected = next((tag for tag in tags if text[begin:end].endswith(tag)), None)
            assert tracker.feed(character) == bool(expected), text[:end]
            if expected:
                begin, num_found = end, num_found + 1
                assert tracker.in_thought == (expected == tags[0])
    assert num_found > 500


def test_a_tag_that_only_began_is_forgotten() -> None:
    tracker = ThoughtTracker(TAGS, in_thought=False)
    assert [tracker.feed(character) for character in "<thi"] == [False] * 4
    tracker.forget()
    assert [tracker.feed(character) for character in "nk>"] == [False] * 3
    assert [tracker.feed(character) for character in "<think>"] == [False] * 6 + [True]
    assert tracker.in_thought
    tracker.forget()
    assert tracker.in_thought


@pytest.mark.parametrize(
    ("text", "begins"),
    [("so</think>", True), ("</think><think>", True), ("<think></think>", False), ("<think>", False), ("so", False)],
)
def test_the_first_tag_shows_whether_the_prompt_opened_the_thought(text: str, begins: bool) -> None:
    assert begins_in_thought(text, TAGS) is begins
