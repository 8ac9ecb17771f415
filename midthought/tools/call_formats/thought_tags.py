"""Tracks whether a thought is open. A tag counts everywhere, also in quotes and in code. Does not depend on calls."""

from __future__ import annotations

import re
from collections.abc import Iterator

from midthought.types.turn import THINK_TAGS

THINK_OPEN, THINK_CLOSE = THINK_TAGS


class ThoughtTracker:
    """Finds the tags in a stream of characters. Thoughts do not nest. Neither tag may contain the other."""

    def __init__(self, tags: tuple[str, str], *, in_thought: bool) -> None:
        self.in_thought = in_thought
        self._tags = tags
        self._first_characters = {tag[0] for tag in tags}
        self._partial = ""
        """The longest suffix of the text that is the beginning of a tag."""

    def feed(self, character: str) -> bool:
        """Reads the next character; True if it completes a tag. Amortized constant time."""
        if not self._partial and character not in self._first_characters:
            return False
        self._partial += character
        while self._partial and not any(tag.startswith(self._partial) for tag in self._tags):
            self._partial = self._partial[1:]
        if self._partial not in self._tags:
            return False
        self.in_thought = self._partial == self._tags[0]
        self._partial = ""
        return True

    def may_skip(self, text: str) -> bool:
        """Returns whether a text can be skipped because no tag begins or ends in it."""
        return not self._partial and self._first_characters.isdisjoint(text)

    def forget(self) -> None:
        """Discards a partial tag: other text follows it. An open thought stays open."""
        self._partial = ""


def outside_thoughts(text: str, tags: tuple[str, str], *, in_thought: bool) -> Iterator[str]:
    """Yields the parts of a text that are in no thought; `in_thought`: whether it begins in one."""
    pieces = re.split(f"({'|'.join(map(re.escape, tags))})", text)
    for part, tag in zip(pieces[::2], [tags[not in_thought], *pieces[1::2]], strict=True):
        if tag == tags[1]:
            yield part


def begins_in_thought(text: str, tags: tuple[str, str]) -> bool:
    """Returns whether the prompt must have opened the thought: the first tag of the turn's text closes one."""
    opening, closing = (text.find(tag) for tag in tags)
    return closing >= 0 and not 0 <= opening < closing
