"""Which characters of a text are quoted."""

from __future__ import annotations

import pytest

from midthought.tools.call_formats.quoting import QuotingTracker


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("a `b` c", "   b   "),
        ("``x`b`` c", "  x b    "),
        ("a ` b\nc", "    b  "),
        ("```py\nx\n```\ny", "    y x     "),
        ("~~\nx", "    "),
        ("#a_error: b\nc\n\nd", "          b c   "),
        ("#a_result b", "           "),
    ],
)
def test_letters_in_quotes_are_told_from_letters_outside(text: str, quoted: str) -> None:
    tracker = QuotingTracker()
    inside = [tracker.feed(character) for character in text]
    seen = {position for position, character in enumerate(text) if inside[position] and character in "bcxy"}
    assert seen == {position for position, character in enumerate(quoted) if character != " "}


def test_a_fence_lasts_from_line_to_line() -> None:
    tracker = QuotingTracker()
    lines = []
    for line in ("a ``` b\n", "```py\n", "x ``` y\n", "```\n", "z\n"):
        for character in line:
            tracker.feed(character)
        lines.append(tracker.in_fence)
    assert lines == [False, True, True, False, False]
