"""Transcript formats. The format is detected from the text; the file's suffix decides only in ambiguous cases.

Readers raise ValueError with the reason; `transcripts` adds the file name.
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
    """A transcript format."""

    name: str
    read: Callable[[str], Reading]
    """Reads cleaned text with `\\n` line ends. Raises ValueError with the reason."""
    remedy: str
    """How to write a file of this format."""


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
"""Suffixes that are read in a folder (besides files without one), with the format that each suggests."""

_JSON_START = re.compile(r"\s*(?:\{|\[\s*(?:[\[\]{\"]|-?\d+\s*[],]|null|true|false))")
_JSON_STRONG = re.compile(r"\s*(?:\{\s*(?:\"|\})|\[\s*(?:\{|\]))")
_HTML_START = re.compile(
    r"\s*<(?:!doctype html|html|head|body|cite|time|p|div|section|article|main|table|ul|ol|h[1-6])\b", re.IGNORECASE
)
_HEAD_LETTERS = 20_000
_HEAD_LINES = 8
"""A file of another suffix must show its format within so many non-empty lines: pages about captions contain captions, too."""


def format_of(text: str, suffix: str = "") -> Format:
    """Returns the format of the text; if it shows none, that of the suffix, else plain text."""
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
