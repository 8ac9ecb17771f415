"""How far a mask reaches: from an answer's first token to its last, with the marks around it that would mean nothing alone.

Knows no answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from midthought.feedback.masking_tokens import Token

NUM_MARKS = 32
"""So many characters on either side are looked at."""

_WRAPPERS = tuple(
    (re.compile(opening + r"\Z"), re.compile(closing))
    for opening, closing in (
        (r"\\begin\s*\{[a-zA-Z]*matrix\}\s*", r"\s*\\end\s*\{[a-zA-Z]*matrix\}"),
        (r"\\left\s*[(\[]\s*", r"\s*\\right\s*[)\]]"),
        (r"\\(?:text|textbf|mbox|mathrm)\s*\{\s*", r"\s*\}"),
        (r"\\left\s*", r""),
        (r"\\\{\s*", r"\s*\\\}"),
        (r"", r"\s*(?:\^\s*(?:\\circ\b|°|\{\s*(?:\\circ|°)\s*\})|°)"),
    )
)
"""What is masked with what it stands around."""


def whole_stretch(text: str, tokens: Sequence[Token], first: int, last: int) -> tuple[int, int]:
    """Start and end in the levelled text: brackets that would be left open, `\\left`, `\\text{…}`, the frame of a matrix, `°`."""
    while first > 1 and tokens[first - 1].key == "{" and tokens[first - 2].key == "\\frac":
        first -= 2
    start, end = tokens[first].start, tokens[last].end
    before, after = text[max(0, start - NUM_MARKS) : start], text[end : end + NUM_MARKS]
    inside = text[start:end]
    for opened, closed in () if "[" in inside or "]" in inside else ("{}", "()"):
        num_before, num_after = _unmatched(inside, opened, closed)
        tail = re.match(rf"(?:\s*\{closed}){{0,{num_after}}}", after)
        head = re.search(rf"(?:(?:\\[a-zA-Z]{{1,12}})?\{opened}\s*){{0,{num_before}}}\Z", before)
        if tail is not None and head is not None:
            start, end = start - len(head[0]), end + len(tail[0])
            before, after = before[: head.start()], after[len(tail[0]) :]
    for opening, closing in _WRAPPERS:
        head, tail = opening.search(before), closing.match(after)
        if head is not None and tail is not None:
            start, end = start - len(head[0]), end + len(tail[0])
            before, after = before[: head.start()], after[len(tail[0]) :]
    return start, end


def _unmatched(text: str, opened: str, closed: str) -> tuple[int, int]:
    """How many brackets of a text are opened before it, and closed after it."""
    num_before = depth = 0
    for sign in text:
        if sign == opened:
            depth += 1
        elif sign == closed:
            num_before, depth = (num_before, depth - 1) if depth else (num_before + 1, 0)
    return min(num_before, NUM_MARKS), min(depth, NUM_MARKS)
