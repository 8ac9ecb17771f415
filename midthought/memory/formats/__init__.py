"""Transcript formats, one module each. The format is detected from the text; the file's suffix decides only in ambiguous cases.

Readers raise ValueError with the reason; `transcripts` adds the file name.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from midthought.memory.formats.reading import Reading, head_of
from midthought.memory.formats.registry import FORMATS, Format, transcript_format

__all__ = ["FORMATS", "Format", "Reading", "binary_format_of", "format_of", "suffixes", "transcript_format"]

_FIRST = ("markdown", "plain_text", "html_pages", "captions", "json_documents")
"""The modules that are registered first. A text that shows several formats is of the last one registered."""


def import_formats() -> None:
    """Imports every module of this folder, so that its formats are registered."""
    others = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _FIRST)
    for name in (*_FIRST, *others):
        import_module(f"{__name__}.{name}")


import_formats()


def suffixes() -> list[str]:
    """Returns the suffixes that are read in a folder (besides files without one)."""
    return [suffix for form in FORMATS.values() for suffix in form.suffixes]


def format_of(text: str, suffix: str = "") -> Format:
    """Returns the format of the text; if it shows none, that of the suffix, else plain text."""
    suffix = suffix.lower()
    latest_first = list(reversed(FORMATS.values()))
    if shown := next((form for form in latest_first if form.shown_by(text, suffix)), None):
        return shown
    readers = [form for form in latest_first if form.read_bytes is None]
    promised = next((form for form in readers if suffix in form.suffixes), FORMATS["text"])
    return FORMATS["text"] if _has_names(text) else promised


def binary_format_of(content: bytes) -> Format | None:
    """Returns the format of a file that is no text; None if its bytes show none."""
    return next((form for form in FORMATS.values() if form.read_bytes and form.shown_by_bytes(content)), None)


def _has_names(text: str) -> bool:
    return any(segment.speaker or segment.time for segment in FORMATS["text"].read(head_of(text)).segments)
