"""Word (.docx) and OpenDocument (.odt) files: their paragraphs, line breaks, table rows, bold starts and headings as lines.

The XML is scanned for its tags, in linear time, so that entities and nesting cost nothing. What is unpacked is limited.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib

from midthought.memory.formats.line_candidates import Row
from midthought.memory.formats.line_reading import read_rows
from midthought.memory.formats.reading import Reading, Skipped
from midthought.memory.formats.registry import binary_format
from midthought.memory.formats.scripts import ends_sentence, word_count
from midthought.memory.formats.tables import has_speech, read_cells
from midthought.memory.markup import mark_times, unescape
from midthought.memory.turns import without_unusable_characters

_MAX_XML_BYTES = 64 * 2**20
"""About 20 times the text of a day."""
_MAIN_PART = re.compile(r"word/document\d*\.xml|content\.xml")
_TAG = re.compile(r"<(?P<close>/?)(?:[A-Za-z0-9]{1,20}:)?(?P<name>[A-Za-z][A-Za-z0-9\-]{0,30})(?P<rest>[^<>]*)>")
_HEADING_STYLE = re.compile(r'val="(?:Heading|Title|Subtitle|berschrift|Titre|Titel)', re.IGNORECASE)
_IS_OFF = re.compile(r'val="(?:0|false|none|off)"')
_MIN_ITEMS = 5
_CELL_END = " | "
_TITLE = re.compile(r"<dc:title>([^<]{1,300})</dc:title>")
_SIDE_PARTS = re.compile(r"word/(?:header|footer|footnotes|endnotes)\d*\.xml")


class _Lines:
    """Collects lines while the tags of a document are scanned."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.empty_before = True
        self.text: list[str] = []
        self.num_bold = 0
        self.all_bold = True
        self.mark = ""
        self.is_item = False
        self.items: set[int] = set()
        """Numbers of the rows that are items of a list and no sentences."""

    def add(self, words: str, *, is_bold: bool) -> None:
        self.text.append(words)
        if not words.strip():
            return
        if is_bold and self.all_bold:
            self.num_bold = len("".join(self.text).strip())
        elif not re.fullmatch(r"[\s()\[\]\d:.,\-–]*", words):  # a time may stand before the bold name
            self.all_bold = False

    def end_line(self, *, ends_paragraph: bool) -> None:
        line = "".join(self.text).strip()
        if line:
            if self.is_item and not ends_sentence(line):
                self.items.add(len(self.rows))
            mark = self.mark or ("bold" if self.num_bold else "")
            self.rows.append(Row(len(self.rows), line, self.empty_before, mark, 0 if self.mark else self.num_bold))
        self.empty_before = not line if ends_paragraph else False
        self.text, self.num_bold, self.all_bold = [], 0, True
        if ends_paragraph:
            self.mark, self.is_item = "", False


@binary_format(
    "Word",
    suffixes=(".docx", ".odt"),
    remedy="save it again as .docx, or as text",
    shown_by=lambda content: content.startswith(b"PK\x03\x04"),
)
def read_word(content: bytes) -> Reading:
    """Reads paragraphs as lines of text; text of deleted changes, comments and side notes is no speech."""
    parts = _parts(content)
    lines = _lines(parts["main"])
    rows = lines.rows
    skipped = [
        Skipped(text, "header, footer or note")
        for name, part in parts.items()
        if name.startswith("word/") and (text := _plain(part))
    ]
    if table := _speech_table(rows):
        names, *cells = ([cell.strip() for cell in row.text.split(_CELL_END)] for row in table)
        reading = read_cells(cells, names)
        inside = {row.number for row in table}
        skipped += [Skipped(row.text, "outside of the table") for row in rows if row.number not in inside]
    else:
        reading = read_rows(
            _spaced(rows), lambda words: mark_times(unescape(words))
        )  # `&amp;gt;` in the document's XML
        num_cells = sum(_CELL_END in row.text for row in rows)
        is_named = any(segment.speaker for segment in reading.segments)
        if not is_named and 2 * num_cells > len(rows):
            reading = reading.doubted(f"{num_cells} of its {len(rows)} lines are rows of tables", 0.4)
        if not is_named and len(lines.items) >= max(_MIN_ITEMS, 0.5 * len(rows)):
            reading = reading.doubted(f"{len(lines.items)} of its {len(rows)} lines are items of a list", 0.4)
    title = _TITLE.search(parts.get("docProps/core.xml", ""))
    written = unescape(title[1]).strip() if title else ""
    header = reading.header + ((("document title", written),) if written else ())
    return reading._replace(title=reading.title or written or None, header=header, skipped=(*reading.skipped, *skipped))


def _parts(content: bytes) -> dict[str, str]:
    """Returns the document's XML as `main`, and its properties and side notes by their names."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            main = next(filter(_MAIN_PART.fullmatch, sorted(names)), None)
            if main is None:
                raise ValueError(
                    "it is a ZIP file but no Word or OpenDocument file; unpack it, or export its words as text"
                )
            wanted = [name for name in names if _SIDE_PARTS.fullmatch(name)][:20]
            found = {name: _unpacked(archive, name) for name in (*wanted, *({"docProps/core.xml"} & set(names)))}
            return {"main": _unpacked(archive, main)} | found
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"it is a damaged or encrypted Word file ({' '.join(str(error).split())})") from None


def _unpacked(archive: zipfile.ZipFile, name: str) -> str:
    with archive.open(name) as file:
        content = file.read(_MAX_XML_BYTES + 1)
    if len(content) > _MAX_XML_BYTES:
        raise ValueError(f"its part {name} has more than {_MAX_XML_BYTES >> 20} MiB; split it")
    return without_unusable_characters(content.decode("utf-8", "replace"))


def _lines(xml: str) -> _Lines:
    lines = _Lines()
    skipping = ""
    is_text = bold = in_cell = False
    start = 0
    for match in _TAG.finditer(xml):
        name, closes, rest = match["name"], bool(match["close"]), match["rest"]
        single = rest.endswith("/")
        if is_text and not skipping and (words := xml[start : match.start()]):
            lines.add(unescape(words), is_bold=bold)
        start = match.end()
        if skipping:
            skipping = "" if closes and name == skipping else skipping
        elif (
            name in ("Fallback", "annotation", "tracked-changes", "instrText", "delText") and not closes and not single
        ):
            skipping = name
        elif name in ("t", "h") or (name == "p" and "text:p" in match[0]):
            is_text = not closes and not single
            if name == "h" or (name == "p" and closes):
                lines.mark = "#" if name == "h" else lines.mark
                if closes and not in_cell:
                    lines.end_line(ends_paragraph=True)
        elif name == "b" and "w:b" in match[0]:
            bold = not _IS_OFF.search(rest)
        elif name == "r" and not closes:
            bold = False
        elif name in ("numPr", "list-item") and not closes:
            lines.is_item = True
        elif name == "pStyle":
            lines.mark = "#" if _HEADING_STYLE.search(rest) else ""
        elif name in ("br", "cr", "line-break") and not in_cell:
            lines.end_line(ends_paragraph=False)
        elif name in ("tab", "s") and single:
            lines.add("  " if name == "tab" else " ", is_bold=bold)
        elif name == "p" and (closes or single):
            if in_cell:
                lines.add(" ", is_bold=False)
            else:
                lines.end_line(ends_paragraph=True)
        elif name in ("tc", "table-cell"):
            in_cell = not closes and not single
            if closes:
                lines.add(_CELL_END, is_bold=False)
        elif name in ("tr", "table-row") and closes:
            lines.text = ["".join(lines.text).removesuffix(_CELL_END)]
            lines.end_line(ends_paragraph=True)
    lines.end_line(ends_paragraph=True)
    return lines


def _speech_table(rows: list[Row]) -> list[Row]:
    """Returns the rows of the table that has columns named as speakers and text are, and most of the words."""
    sizes = [len(row.text.split(_CELL_END)) for row in rows]
    words = [word_count(row.text) for row in rows]
    for start, row in enumerate(rows):
        if sizes[start] > 1 and has_speech([name.strip() for name in row.text.split(_CELL_END)]):
            end = next((place for place in range(start, len(rows)) if sizes[place] != sizes[start]), len(rows))
            if 2 * sum(words[start:end]) > sum(words):
                return rows[start:end]
    return []


def _spaced(rows: list[Row]) -> list[Row]:
    """Takes every paragraph for separated, if empty ones do not separate them."""
    num_paragraphs = sum(row.after_blank for row in rows[1:])
    return rows if num_paragraphs > 0.1 * len(rows) else [row._replace(after_blank=True) for row in rows]


def _plain(xml: str) -> str:
    return " ".join(unescape(_TAG.sub(" ", xml[xml.find("<w:p") :])).split()) if "<w:t" in xml else ""
