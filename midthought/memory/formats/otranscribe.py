"""oTranscribe: a JSON object whose `text` is a page with times in `<span class="timestamp">`."""

from __future__ import annotations

import json

from midthought.memory.formats.html_pages import read_html
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format


def _page(text: str) -> str | None:
    """Returns the page; None if it is no such object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    page = found.get("text") if isinstance(found, dict) and "media-time" in found else None
    return page if isinstance(page, str) else None


@transcript_format(
    "oTranscribe",
    suffixes=(".otr",),
    remedy="export it again, as .otr or as text",
    shown_by=lambda text, suffix: suffix == ".otr" or ('"media-time"' in text and _page(text) is not None),
)
def read_otranscribe(text: str) -> Reading:
    """The page is read as HTML."""
    page = _page(text)
    if page is None:
        raise ValueError("it is no JSON object with a page under 'text' and a 'media-time'")
    return read_html(page)
