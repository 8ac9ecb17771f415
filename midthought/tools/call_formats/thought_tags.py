"""Finds the parts of a text that are thoughts. A tag counts everywhere, also in quotes and in code. Does not depend on calls."""

from __future__ import annotations

import re
from collections.abc import Iterator

from midthought.types.turn import THINK_TAGS

THINK_OPEN, THINK_CLOSE = THINK_TAGS


def split_thoughts(text: str, tags: tuple[str, str], *, in_thought: bool) -> Iterator[tuple[str, bool]]:
    """Yields the parts of a text between think tags, and whether each is a thought; `in_thought`: whether the first one is."""
    for part in re.split(f"({'|'.join(map(re.escape, tags))})", text):
        if part in tags:
            in_thought = part == tags[0]
        else:
            yield part, in_thought


def begins_in_thought(text: str, tags: tuple[str, str]) -> bool:
    """Returns whether the prompt must have opened the thought: the first tag of the turn's text closes one."""
    opening, closing = (text.find(tag) for tag in tags)
    return closing >= 0 and not 0 <= opening < closing
