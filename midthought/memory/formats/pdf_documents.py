"""PDF: the text of its pages as lines, without what is repeated on them. Needs the package pypdf."""

from __future__ import annotations

import io
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, compress
from typing import Any

from midthought.memory.formats.line_candidates import Row
from midthought.memory.formats.line_reading import read_rows, rows_of
from midthought.memory.formats.reading import Reading, Skipped
from midthought.memory.formats.registry import binary_format
from midthought.memory.formats.row_order import without_numbers
from midthought.memory.formats.scripts import ends_sentence
from midthought.memory.markup import mark_times
from midthought.memory.turns import without_unusable_characters

_MAX_PAGES = 3000
_MAX_LETTERS = 50_000_000
_MAX_SECONDS = 120.0
_EDGE_LINES = 2
"""Lines at the top and bottom of a page that may repeat."""
_GAP = re.compile(r"(?:\S{1,40} ){2}\S{1,40} {4,200}(?:\S{1,40} ){2}\S")
_MAX_GAPS_SHARE = 0.2
_NUM_COMPARED = 6
"""Pages of which two ways of reading are compared."""
_MIN_NUMBERED_SHARE = 0.6
_MIN_INDEX_WORDS = 100
_MIN_WORDS_PER_LINE = 7
_MIN_LINE_WORDS = 6
_MIN_TIMES_MORE = 5
_MAX_WORDS_DRAWN = 1.2
"""Words per line of a page that draws each word on its own."""
_MIN_PLACED_SHARE = 0.95
"""Of a page's letters, so that its lines are read by the places of their words."""
_TIME = re.compile(r"\W?[\d:.,]{0,20}\d:\d[\d:.,]{0,20}\W?")
_MIN_REPEATED_SHARE = 0.3
"""Of the pages: left and right pages may have lines of their own."""


@binary_format(
    "PDF",
    suffixes=(".pdf",),
    remedy="export its words as text, or as .docx",
    shown_by=lambda content: content.startswith(b"%PDF"),
)
def read_pdf(content: bytes) -> Reading:
    """Reads the lines of all pages, without their numbers. Lines at the edges of many pages, except for their digits, are
    skipped."""
    with _pypdf_messages() as messages:
        pages, title = _pages(content)
    repeated = _repeated(pages)
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for page in pages:
        words = [word for row in page for word in row.text.split()]
        if 2 * sum(any(map(str.isdigit, word)) for word in words) > len(words) > _MIN_INDEX_WORDS:
            skipped.append(Skipped(" ".join(words), "page of numbers, as in an index"))
            continue
        repeats = [_is_edge(page, place) and _masked(row.text) in repeated for place, row in enumerate(page)]
        skipped += [Skipped(row.text, "repeated on pages") for row in compress(page, repeats)]
        shown = [row for row, is_repeat in zip(page, repeats, strict=True) if not is_repeat]
        numberless = without_numbers(shown, _MIN_NUMBERED_SHARE)
        if rows and numberless and not (ends_sentence(rows[-1].text) and _may_be_label(numberless[0].text)):
            numberless = [numberless[0]._replace(after_blank=False), *numberless[1:]]
        rows += numberless
    rows = [row._replace(number=number) for number, row in enumerate(rows)]
    if not rows:
        raise ValueError("it has no text, only images; run a text recognition (OCR) on it first")
    reading = read_rows(rows, mark_times)
    header = reading.header + ((("document title", title),) if title else ())
    if messages and (empty := [number for number, page in enumerate(pages, 1) if not page]):
        reading = reading.doubted(f"it is damaged, and page {empty[0]} has no text: {messages[0][:60]!r}", 0.3)
    return reading._replace(title=reading.title or title or None, header=header, skipped=(*reading.skipped, *skipped))


@contextmanager
def _pypdf_messages() -> Iterator[list[str]]:
    """Collects what pypdf logs about damage in this thread, which Python would else print."""
    messages: list[str] = []
    thread = threading.get_ident()

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:
                messages.append(record.getMessage())

    collector = Collector()
    logger = logging.getLogger("pypdf")
    logger.addHandler(collector)
    try:
        yield messages
    finally:
        logger.removeHandler(collector)


def _pages(content: bytes) -> tuple[list[list[Row]], str]:
    """Returns the rows of each page, and the document's title."""
    try:
        import pypdf
    except ImportError:
        raise ValueError("to read a PDF, install pypdf: pip install 'midthought[documents]'") from None
    started = time.monotonic()
    pages: list[list[Row]] = []
    num_letters = 0
    try:
        reader = pypdf.PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ValueError("it is encrypted; save it without a password")
        if len(reader.pages) > _MAX_PAGES:
            raise ValueError(f"it has {len(reader.pages):,} pages, more than {_MAX_PAGES:,}; split it")
        by_place = _reads_better_by_place(reader.pages[1 : 1 + _NUM_COMPARED] or reader.pages)
        for page in reader.pages:
            text = drawn = page.extract_text()
            if by_place and _has_two_columns(text := _by_place(page, drawn)):
                text = drawn
            num_letters += len(text)
            if num_letters > _MAX_LETTERS or time.monotonic() - started > _MAX_SECONDS:
                raise ValueError(
                    f"its text takes more than {_MAX_LETTERS:,} letters or {_MAX_SECONDS:.0f} seconds; split it"
                )
            lines = [
                " ".join(line.split())
                for line in without_unusable_characters(text.replace("\u200b", "")).strip().split("\n")
            ]
            pages.append(rows_of("\n".join(lines)))
        return pages, _title(reader)
    except ValueError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except Exception as error:  # damaged files raise errors of many kinds
        raise ValueError(
            f"it is a PDF that cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:100]})"
        ) from None


def _by_place(page: Any, drawn: str) -> str:
    """Returns the lines by the places of their words; `drawn` if words have no known place, for example without a font."""
    try:
        text = str(page.extract_text(extraction_mode="layout", layout_mode_strip_rotated=False))
    except Exception:  # pypdf raises errors of many kinds
        return drawn
    return _with_drawn_words(text, drawn) if _num_signs(text) > _MIN_PLACED_SHARE * _num_signs(drawn) else drawn


def _with_drawn_words(placed: str, drawn: str) -> str:
    """Returns the lines with the words of `drawn`, if the page draws nearly every word on its own: blanks between placed words
    may be too narrow to be seen."""
    words = drawn.split()
    if len(words) > _MAX_WORDS_DRAWN * len(drawn.strip().split("\n")) or "".join(words) != "".join(placed.split()):
        return placed
    lines, start = [], 0
    ends = set(accumulate(map(len, words)))
    for line in placed.split("\n"):
        letters = "".join(line.split())
        lines.append("".join(" " * (start + at in ends) + sign for at, sign in enumerate(letters)).strip())
        start += len(letters)
    return "\n".join(lines)


def _num_signs(text: str) -> int:
    return sum(map(len, text.split()))


def _reads_better_by_place(pages: Sequence[Any]) -> bool:
    """Whether lines by the places of their words are better than those in the order of drawing: unless these break fewer
    words and have several on a line."""
    drawn = [page.extract_text() for page in pages]
    placed = map(_by_place, pages, drawn)
    num_drawn, num_placed = (sum(len(text.split()) for text in texts) for texts in (drawn, placed))
    num_lines = sum(bool(line.strip()) for text in drawn for line in text.split("\n"))
    return num_drawn > 0.999 * num_placed or num_drawn < _MIN_WORDS_PER_LINE * num_lines


def _has_two_columns(text: str) -> bool:
    """Whether many lines have words on both sides of a wide gap."""
    return len(_GAP.findall(text)) > _MAX_GAPS_SHARE * len(text.split("\n"))


def _title(reader: Any) -> str:
    title = reader.metadata.title if reader.metadata else None
    return " ".join(without_unusable_characters(title).split())[:300] if isinstance(title, str) else ""


def _repeated(pages: list[list[Row]]) -> set[str]:
    """Returns the lines, with their digits masked, at the edges of many of the pages, and of three, and hardly elsewhere;
    a label with a colon starts other lines, too."""
    counts: Counter[str] = Counter()
    inner: Counter[str] = Counter()
    for page in pages:
        counts.update({_masked(row.text) for place, row in enumerate(page) if _is_edge(page, place)})
        others = [row.text for place, row in enumerate(page) if not _is_edge(page, place)]
        inner.update({_masked(part) for text in others for part in (text, "".join(text.partition(":")[:2]))})
    least = max(3, _MIN_REPEATED_SHARE * len(pages))
    return {line for line, count in counts.items() if count >= max(least, _MIN_TIMES_MORE * inner[line])}


def _may_be_label(line: str) -> bool:
    return ":" in line[:60] or len(line.split()) < _MIN_LINE_WORDS


def _is_edge(page: list[Row], place: int) -> bool:
    return place < _EDGE_LINES or place >= len(page) - _EDGE_LINES


def _masked(line: str) -> str:
    return line if _TIME.fullmatch(line) else re.sub(r"\d+", "0", line)
