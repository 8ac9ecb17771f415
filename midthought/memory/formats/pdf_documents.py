"""PDF: the text of its pages as lines, without what is repeated on them. Needs the package pypdf."""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from typing import Any

from midthought.memory.formats.line_candidates import Row
from midthought.memory.formats.line_reading import read_rows
from midthought.memory.formats.reading import Reading, Skipped
from midthought.memory.formats.registry import binary_format
from midthought.memory.markup import mark_times
from midthought.memory.turns import without_unusable_characters

_MAX_PAGES = 3000
_MAX_LETTERS = 50_000_000
_MAX_SECONDS = 120.0
_EDGE_LINES = 2
"""Lines at the top and bottom of a page that may repeat."""


@binary_format(
    "PDF",
    suffixes=(".pdf",),
    remedy="export its words as text, or as .docx",
    shown_by=lambda content: content.startswith(b"%PDF"),
)
def read_pdf(content: bytes) -> Reading:
    """Reads the lines of all pages. Lines at the edges of at least half of the pages, except for their digits, are skipped."""
    pages, title = _pages(content)
    repeated = _repeated(pages)
    rows: list[Row] = []
    skipped: list[Skipped] = []
    after_blank = True
    for lines in pages:
        edges = {*range(_EDGE_LINES), *range(len(lines) - _EDGE_LINES, len(lines))}
        for place, line in enumerate(lines):
            if place in edges and _masked(line) in repeated:
                skipped.append(Skipped(line, "repeated on pages"))
            elif line:
                rows.append(Row(len(rows), line, after_blank))
            after_blank = not line
    if not rows:
        raise ValueError("it has no text, only images; run a text recognition (OCR) on it first")
    reading = read_rows(rows, mark_times)
    header = reading.header + ((("document title", title),) if title else ())
    return reading._replace(title=reading.title or title or None, header=header, skipped=(*reading.skipped, *skipped))


def _pages(content: bytes) -> tuple[list[list[str]], str]:
    """Returns the lines of each page, without empty ones at the edges, and the document's title."""
    try:
        import pypdf
    except ImportError:
        raise ValueError("to read a PDF, install pypdf: pip install 'midthought[documents]'") from None
    started = time.monotonic()
    pages: list[list[str]] = []
    num_letters = 0
    try:
        reader = pypdf.PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ValueError("it is encrypted; save it without a password")
        if len(reader.pages) > _MAX_PAGES:
            raise ValueError(f"it has {len(reader.pages):,} pages, more than {_MAX_PAGES:,}; split it")
        for page in reader.pages:
            text = page.extract_text()
            num_letters += len(text)
            if num_letters > _MAX_LETTERS or time.monotonic() - started > _MAX_SECONDS:
                raise ValueError(
                    f"its text takes more than {_MAX_LETTERS:,} letters or {_MAX_SECONDS:.0f} seconds; split it"
                )
            lines = [" ".join(line.split()) for line in without_unusable_characters(text).strip().split("\n")]
            pages.append(lines if any(lines) else [])
        return pages, _title(reader)
    except ValueError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except Exception as error:  # damaged files raise errors of many kinds
        raise ValueError(
            f"it is a PDF that cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:100]})"
        ) from None


def _title(reader: Any) -> str:
    title = reader.metadata.title if reader.metadata else None
    return " ".join(without_unusable_characters(title).split())[:300] if isinstance(title, str) else ""


def _repeated(pages: list[list[str]]) -> set[str]:
    """Returns the lines at the edges of at least half of the pages, and of three, with their digits masked."""
    counts: Counter[str] = Counter()
    for lines in pages:
        counts.update({_masked(line) for line in (*lines[:_EDGE_LINES], *lines[-_EDGE_LINES:]) if line})
    return {line for line, count in counts.items() if count >= max(3, 0.5 * len(pages)) and not line.isspace()}


def _masked(line: str) -> str:
    return re.sub(r"\d+", "0", line)
