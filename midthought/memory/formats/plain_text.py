"""Plain text: `Name (00:29):` with or without words after it, `[00:29] Name: text`, `Name: text`, `00:00:29 text`, prose."""

from __future__ import annotations

import re

from midthought.memory.formats.header_fields import front_matter
from midthought.memory.formats.line_reading import read_rows, rows_of
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format
from midthought.memory.formats.speech_signs import with_lost_words, with_writing_doubts
from midthought.memory.formats.spelled_times import without_spelled_times
from midthought.memory.markup import mark_times, unescape

_REFERENCE = re.compile(r"&(?:#\d{1,5}|amp|gt|lt|quot|apos|nbsp);")
_TAG = re.compile(r"</?[a-zA-Z]")
_CUE_TAGS = re.compile(r"</?c(?:\.[^\s<>]{0,40})?>|</v>|<\d{1,3}:[\d:.]{2,12}>")


@transcript_format(
    "text",
    suffixes=(".txt", ".text"),
    remedy="write each turn as 'Name (00:00:29):', 'Name: text' or '00:00:29 text'",
    shown_by=lambda text, suffix: False,  # the format of a text that shows no other
)
def read_plain_text(text: str) -> Reading:
    """The lines before the first turn are header fields; the notation is the one that the whole file supports."""
    text = unescape(text) if len(_REFERENCE.findall(text)) > 1 and not _TAG.search(text) else text
    title, fields, body = front_matter(text)
    reading = with_writing_doubts(read_rows(rows_of(body), _words), body)
    return with_lost_words(
        reading._replace(title=title or reading.title, header=fields + reading.header),
        "\n".join(without_spelled_times(text.split("\n"))),
    )


def _words(line: str) -> str:
    return mark_times(_CUE_TAGS.sub(" ", line) if "<" in line else line)
