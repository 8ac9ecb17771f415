"""Markdown: turns `**Speaker:** text` up to the next speaker."""

from __future__ import annotations

import re

from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format
from midthought.memory.markup import plain_words
from midthought.memory.turns import Segment

SPEAKER = re.compile(
    r"^\s{0,3}(\*\*|__)(?P<name>[^*\n]{1,100}?)(?:\s{0,9}:\s{0,9}\1|\1\s{0,9}:)(?P<rest>.*)$", re.MULTILINE
)
"""A line that starts a turn."""

_HEADING = re.compile(r"^\s{0,3}#{1,6}\s")
_RULE = re.compile(r"^[\s\\]*(?:(?:\*[\s\\]*){3,}|(?:-\s*){3,}|(?:_\s*){3,}|=+\s*|(?:```|~~~).*)$")
_LINE_PREFIX = re.compile(r"^\s*(?:>\s?)*(?:[-*+]\s+)?")
_FRONT_FIELD = re.compile(r"^(?:title|episode):(?P<title>.*)$", re.MULTILINE)


@transcript_format(
    "Markdown",
    suffixes=(".md", ".markdown"),
    remedy="write each turn as '**Speaker:** text'",
    shown_by=lambda text, suffix: bool(SPEAKER.search(text)),
)
def read_markdown(text: str) -> Reading:
    """The title is in the front matter or the first heading; a turn's paragraphs, lists and quotes are its words."""
    title, text = _front_title(text)
    segments: list[Segment] = []
    name: str | None = None
    lines: list[str] = []  # of the current turn

    def end_turn() -> None:
        if name is not None:
            segments.append(Segment(name, plain_words("\n".join(lines)), begins_turn=True))

    for line in text.split("\n"):
        if speaker := SPEAKER.match(line):
            end_turn()
            name = plain_words(speaker["name"])
            lines = [speaker["rest"]]
        elif _HEADING.match(line):
            if title is None and name is None:
                title = plain_words(line.strip().strip("#"))
        elif name is not None and not _RULE.match(line):
            lines.append(_LINE_PREFIX.sub("", line))
    end_turn()
    return Reading(title or None, segments)


def _front_title(text: str) -> tuple[str | None, str]:
    """Returns the title in the front matter, and the text after it."""
    end = text.find("\n---\n", 3) if text.startswith("---\n") else -1
    if end < 0:
        return None, text
    found = _FRONT_FIELD.search(text, 4, end)
    title = found["title"].strip() if found else ""
    if len(title) > 1 and title[0] == title[-1] and title[0] in "\"'":
        title = title[1:-1]
    return title or None, text[end + 5 :]
