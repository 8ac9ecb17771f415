"""The ways transcripts are written. Which one a text follows is found out from the text; its file's suffix breaks ties.

Readers raise ValueError with the reason; they know no files (transcripts names the file).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from midthought.memory.formats.captions import CUE_TIME, read_captions
from midthought.memory.formats.html_pages import read_html
from midthought.memory.formats.json_documents import read_json
from midthought.memory.formats.markdown import SPEAKER, read_markdown
from midthought.memory.formats.plain_text import read_plain_text
from midthought.memory.formats.reading import Reading

__all__ = ["FORMATS", "SUFFIXES", "Format", "Reading", "format_of"]


@dataclass(frozen=True, slots=True)
class Format:
    """A way of writing transcripts."""

    name: str
    read: Callable[[str], Reading]
    """From cleaned text with `\\n` as line end. Raises ValueError with the reason."""
    remedy: str
    """How a file of this format is to be written."""


_CUES = "give it cues with '{} --> {}' and words"
_MARKDOWN = Format("Markdown", read_markdown, "write each turn as '**Speaker:** text'")
_TEXT = Format("text", read_plain_text, "write each turn as 'Name (00:00:29):', 'Name: text' or '00:00:29 text'")
_JSON = Format(
    "JSON",
    read_json,
    "give it {'speakers', 'episode', 'content': [{'speaker', 'transcript', 'time'}]} or {'segments': [...]}",
)
_SRT = Format("SRT", read_captions, _CUES.format("HH:MM:SS,mmm", "HH:MM:SS,mmm"))
_VTT = Format("VTT", read_captions, _CUES.format("HH:MM:SS.mmm", "HH:MM:SS.mmm"))
_HTML = Format("HTML", read_html, "write each turn as '<cite>Name:</cite> <time>0:00</time> <p>text</p>'")

FORMATS = (_MARKDOWN, _TEXT, _JSON, _SRT, _VTT, _HTML)
SUFFIXES = {
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".txt": _TEXT,
    ".text": _TEXT,
    ".json": _JSON,
    ".srt": _SRT,
    ".vtt": _VTT,
    ".html": _HTML,
    ".htm": _HTML,
}
"""What files of a folder are read (besides those without a suffix), and what each suffix promises."""

_JSON_START = re.compile(r"\s*(?:\{|\[\s*(?:[\[\]{\"]|-?\d+\s*[],]|null|true|false))")
_JSON_STRONG = re.compile(r"\s*(?:\{\s*(?:\"|\})|\[\s*(?:\{|\]))")
_HTML_START = re.compile(
    r"\s*<(?:!doctype html|html|head|body|cite|time|p|div|section|article|main|table|ul|ol|h[1-6])\b", re.IGNORECASE
)
_HEAD_LETTERS = 20_000
_HEAD_LINES = 8
"""A file that promises something else shows within so many lines of words what it is: pages about captions hold some, too."""


def format_of(text: str, suffix: str = "") -> Format:
    """The format that the text is written in; where it shows none, the one that the suffix promises, else plain text."""
    promised = SUFFIXES.get(suffix.lower())
    if text.startswith("WEBVTT"):
        return _VTT
    if _JSON_STRONG.match(text) or (promised is _JSON and _JSON_START.match(text)):
        return _JSON
    if CUE_TIME.search(text if promised in (_SRT, _VTT) else _head(text)):
        return _SRT
    num_spoken = len(SPEAKER.findall(text))
    if _HTML_START.match(text) and (not num_spoken or promised is _HTML):
        return _HTML
    if num_spoken:
        return _MARKDOWN
    return promised if promised and not _has_names(text) else _TEXT


def _has_names(text: str) -> bool:
    return any(segment.speaker or segment.time for segment in read_plain_text(_head(text)).segments)


def _head(text: str) -> str:
    return "\n".join(islice((line for line in text[:_HEAD_LETTERS].split("\n") if line.strip()), _HEAD_LINES))
