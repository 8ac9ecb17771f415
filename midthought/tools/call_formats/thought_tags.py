"""Follows tags in a text, character by character: which one just ended, and whether a thought is open.

Knows nothing of calls. A tag counts wherever it stands, in quotes and in code too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class TagTracker:
    """Says which of some tags ends with the character just taken. No tag stands inside another."""

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tuple(tags)
        self._first_characters = {tag[0] for tag in tags}
        self._begun = ""
        """The longest end of the text that a tag begins with."""

    def feed(self, character: str) -> str | None:
        """Take the next character; the tag that it completes, or None. Amortised constant time."""
        if not self._begun and character not in self._first_characters:
            return None
        self._begun += character
        while self._begun and not any(tag.startswith(self._begun) for tag in self._tags):
            self._begun = self._begun[1:]
        if self._begun not in self._tags:
            return None
        tag, self._begun = self._begun, ""
        return tag

    def may_skip(self, text: str) -> bool:
        """Whether nothing is to be taken of a text, for no tag begins or ends in it."""
        return not self._begun and self._first_characters.isdisjoint(text)

    def forget(self) -> None:
        """Other text stands in between: a tag that has only begun is none."""
        self._begun = ""


class ThoughtTracker:
    """Follows the two tags of a thought; thoughts do not nest."""

    def __init__(self, tags: tuple[str, str], *, in_thought: bool) -> None:
        self._opening = tags[0]
        self._tags = TagTracker(tags)
        self.may_skip = self._tags.may_skip
        """Whether nothing is to be taken of a text: the tags' own answer, for it is asked for every token."""
        self.in_thought = in_thought

    def feed(self, character: str) -> bool:
        """Take the next character; True where it completes a tag."""
        tag = self._tags.feed(character)
        if tag is None:
            return False
        self.in_thought = tag == self._opening
        return True

    def forget(self) -> None:
        """Other text stands in between: a tag that has only begun is none. The thought goes on."""
        self._tags.forget()


@functools.cache
def plain_text(marks: str, tags: Sequence[str]) -> Callable[[str], object]:
    """Tells (by truth) whether a text has none of the marks, nor what a tag begins with."""
    firsts = "".join(tag[0] for tag in tags)
    return re.compile(f"[^{re.escape(marks + firsts)}]*").fullmatch


def begins_in_thought(text: str, tags: tuple[str, str]) -> bool:
    """Whether a turn's text shows that the prompt had opened the thought: its first tag closes one."""
    opening, closing = (text.find(tag) for tag in tags)
    return closing >= 0 and not 0 <= opening < closing
