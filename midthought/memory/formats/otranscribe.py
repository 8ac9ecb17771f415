"""oTranscribe: a JSON object whose `text` is a page with times in `<span class="timestamp">`."""

from __future__ import annotations

import json

from midthought.memory.formats.html_pages import read_html
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format


@transcript_format(
    "oTranscribe",
    suffixes=(".otr",),
    remedy="export it again, as .otr or as text",
    shown_by=lambda text, suffix: suffix == ".otr" or (text.lstrip().startswith("{") and '"media-time"' in text),
)
def read_otranscribe(text: str) -> Reading:
    """The page is read as HTML."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    page = found.get("text") if isinstance(found, dict) else None
    if not isinstance(page, str):
        raise ValueError("it is no JSON object with a page under 'text'")
    return read_html(page)
