"""CSV and TSV, such as `start,speaker,text`, with names of columns or without: read like the entries of a JSON list."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from threading import Lock
from typing import Literal

from midthought.memory.formats.columns import are_labels, are_numbers, columns_of, names_speakers, names_text
from midthought.memory.formats.json_documents import read_document
from midthought.memory.formats.json_entries import folded_keys, paired, speaker_of, start_of, text_of
from midthought.memory.formats.line_heads import is_label
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format
from midthought.memory.formats.scripts import ends_sentence, word_count
from midthought.memory.markup import unescape
from midthought.memory.turns import UNKNOWN_SPEAKER

_MAX_HEADING_WORDS = 4
_MIN_ROWS = 6
_MAX_LINE_COLUMNS = 3
"""Columns that lines of text have, too, as in `Ann Lee:<tab>0:12<tab>text`."""
_FEW = 0.15
"""Share of rows without a speaker below which their speakers may have been forgotten."""
_NOTE = re.compile(r"\s*[(\[][^()\[\]]*[)\]]\s*")
_QUOTED = re.compile(r'(?:^|[\t\n])"')
_MAX_COLUMN_LETTERS = 50
_HEAD_LETTERS = 20_000
_MIN_SENTENCE_WORDS = 6
"""Words per cell of a column of sentences."""
_EMPHASIS = re.compile(r"</?(?:b|i|u|em|strong|mark)>")
_DELIMITERS = ",\t;|"
_QUOTED_NAMES = re.compile(r'"[^"\n]{0,50}"(?: "[^"\n]{0,50}"){1,99}\s*')
"""Names of columns between blanks, as the statistics program R writes them by default."""
_MAX_CELL_LETTERS = 1 << 28
"""A whole episode may be in one cell."""
_CELL_LIMIT = Lock()
_SUFFIXES = (".csv", ".tsv")


def _names(line: str, sign: str) -> list[str]:
    """Returns the names of the columns; empty if the line has other words."""
    cells = line.strip()[1:-1].split('" "') if sign == " " else line.rstrip("\n").split(sign)
    names = [name.strip(' "') for name in cells]
    are_names = all(not name or (len(name) <= _MAX_COLUMN_LETTERS and name[0].isalpha()) for name in names)
    given = [name for name in names if name]
    return names if len(names) > 1 and are_names and len(set(given)) == len(given) else []


def _separates(head: str, sign: str) -> bool:
    """Whether all rows but the last, which may be cut, have the same number of cells."""
    rows = _rows(head, sign)[:-1] if sign in head else []
    return len(rows) > 1 and len({len(row) for row in rows}) == 1 and len(rows[0]) > 1


def _knows_text(names: Sequence[str]) -> bool:
    return bool(text_of(folded_keys(dict.fromkeys(names, "x"))))


def _is_known(name: str) -> bool:
    entry = folded_keys({name: "1"})
    return bool(speaker_of(entry) or start_of(entry))


def _is_table(text: str, suffix: str) -> bool:
    head = text[:500].split("\n", 1)[0]
    has_names = any(all(names) and _knows_text(names) for names in (_names(head, sign) for sign in _DELIMITERS))
    start = text[:_HEAD_LETTERS]
    has_blanks = bool(_QUOTED_NAMES.fullmatch(head))
    is_named = suffix in _SUFFIXES and (has_blanks or any(_separates(start, sign) for sign in _DELIMITERS))
    return suffix not in (".md", ".markdown") and (has_names or is_named or _has_columns(start, "\t"))


def _has_columns(start: str, sign: str) -> bool:
    """Whether the rows have the same columns, among them one of labels and one of text."""
    rows = _rows(start, sign)[:-1] if _separates(start, sign) else []
    if len(rows) < _MIN_ROWS or not (len(rows[0]) > _MAX_LINE_COLUMNS or _QUOTED.search(start) or _are_headings(rows)):
        return False
    found = columns_of(rows[1:], rows[0])
    place = next((place for place, name in found.items() if name == "speaker"), None)
    if place is None or "text" not in found.values():
        return False
    return are_labels([row[place] for row in rows[1:]]) or names_speakers(rows[0][place]) or bool(_QUOTED.search(start))


@transcript_format(
    "table",
    suffixes=_SUFFIXES,
    remedy="give it a first line with the names of its columns, such as 'start,speaker,text'",
    shown_by=_is_table,
)
def read_table(text: str) -> Reading:
    """Each row is an entry; an empty speaker is the one before. Columns without a known name are found by their values."""
    text = _without_remark(text)
    head = text[:500].split("\n", 1)[0]
    sign = max(
        _DELIMITERS,
        key=lambda each: (_knows_text(_names(head, each)), _separates(text[:_HEAD_LETTERS], each), head.count(each)),
    )
    sign = " " if _QUOTED_NAMES.fullmatch(head) else sign
    rows = _rows(text, sign)
    if not rows:
        raise ValueError("it has no rows with values")
    rows = rows[1:] if len(rows) > 1 and _are_numbers_of_columns(rows[0]) else rows
    names = _names(head, sign)
    if sign == " " and len(rows) > 1 and len(rows[1]) == len(names) + 1:
        names = ["", *names]  # the names of the rows
    if _knows_text(names):
        return read_cells([row for row in rows if row != rows[0]], names)
    if len(paired(folded_keys(dict.fromkeys(names, "x")))) > 1:
        return read_document([dict(zip(names, row, strict=False)) for row in rows[1:]])
    known = folded_keys(dict.fromkeys(filter(None, names), "1"))
    has_names = bool(names and (speaker_of(known) or start_of(known) or _are_headings(rows) or _names_numbers(rows)))
    given = names if has_names else [""] * len(rows[0])
    found = columns_of(rows[has_names:], given)
    if not found:
        raise ValueError("its first line has no column for the text")
    chosen = [name if name and _is_known(name) else found.get(place, name) for place, name in enumerate(given)]
    text_place = next(place for place, name in found.items() if name == "text")
    chosen[text_place] = "text"
    reading = read_document(_entries(rows[has_names:], chosen))
    label = next((place for place, name in found.items() if name == "speaker"), None)
    labels = [row[label] for row in rows[has_names:]] if label is not None else []
    are_shaped = are_labels(labels) and (has_names or all(map(is_label, set(labels))))
    is_named = any(map(names_speakers, given)) or any(speaker_of(folded_keys({name: "x"})) for name in given)
    if label is not None and not are_shaped and not names_speakers(given[label]):
        return reading.doubted(f"the values of column {label + 1} are taken for the speakers", 0.5)
    texts = [row[text_place] for row in rows]
    are_sentences = 2 * sum(map(ends_sentence, texts)) > len(texts)
    are_long = sum(map(word_count, texts)) >= _MIN_SENTENCE_WORDS * len(texts)
    is_plain = are_shaped or "start" in found.values() or (are_sentences and are_long)
    if is_named or names_text(given[text_place]) or (not has_names and is_plain):
        return reading.doubted("which column has the text follows from its words, not from a name", 0.1)
    return reading.doubted("no column is named as one of speakers or of text; the one with the most words is read", 0.4)


def _without_remark(text: str) -> str:
    """Returns the text without a first line that has only one cell, above a line of the columns' names."""
    first, _, rest = text.partition("\n")
    cells = first.split("\t")
    return (
        rest
        if len(cells) > _MAX_LINE_COLUMNS and not any(cells[1:]) and len(_names(rest.split("\n")[0], "\t")) > 1
        else text
    )


def _are_numbers_of_columns(cells: Sequence[str]) -> bool:
    """Whether the cells are 0, 1, 2 and so on, as programs number columns; the first one may be empty."""
    numbers = cells[cells[0] == "" :]
    return len(numbers) > 1 and list(numbers) == [str(number) for number in range(len(numbers))]


def _names_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a column has numbers only, but for the first row."""
    columns = zip(*(row for row in rows if len(row) == len(rows[0])), strict=True)
    return any(any(map(str.isalpha, column[0])) and any(column[1:]) and are_numbers(column[1:]) for column in columns)


def has_speech(names: Sequence[str]) -> bool:
    """Whether columns of these names have speakers and text."""
    return any(map(names_speakers, names)) and _knows_text(names)


def read_cells(rows: Sequence[Sequence[str]], names: Sequence[str]) -> Reading:
    """Reads rows whose columns have known names."""
    entries = _with_remarks_of_nobody(_entries(rows, names))
    reading = read_document(entries)
    return (
        reading.doubted("rows without a speaker may be another one's than the one before", 0.4)
        if _unwritten(entries)
        else reading
    )


def _with_remarks_of_nobody(entries: list[dict[str, str]]) -> list[dict[str, str]]:
    """Returns the entries; if only remarks in brackets have no speaker, they are of nobody, not of the speaker before."""
    folded = [folded_keys(entry) for entry in entries]
    unnamed = [not speaker_of(entry) for entry in folded]
    remarks = [bool(_NOTE.fullmatch(text_of(entry))) for entry in folded]
    if not any(unnamed) or any(each and not note for each, note in zip(unnamed, remarks, strict=True)):
        return entries
    return [
        {**entry, "speaker": UNKNOWN_SPEAKER} if each else entry for entry, each in zip(entries, unnamed, strict=True)
    ]


@contextmanager
def _long_cells() -> Iterator[None]:
    """While it is open, the csv module reads long cells, in the whole process: one thread at a time, which restores the limit."""
    with _CELL_LIMIT:
        usual_limit = csv.field_size_limit(_MAX_CELL_LETTERS)
        try:
            yield
        finally:
            csv.field_size_limit(usual_limit)


@_long_cells()
def _rows(text: str, sign: str) -> list[list[str]]:
    has_quotes = sign in ",;" or f'{sign}"' in text or text.startswith('"') or '\n"' in text
    lines = text.splitlines(keepends=True)
    escape = "\\" if sign == " " else None
    try:
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
        rows = list(csv.reader(lines, delimiter=sign, quoting=quoting, escapechar=escape))
        if sign != " " and any("\n" in cell for row in rows for cell in row):
            plain = list(csv.reader(lines, delimiter=sign, quoting=csv.QUOTE_NONE))
            rows = plain if len({len(row) for row in plain}) == 1 else rows  # a quotation mark within a line's words
    except csv.Error as error:
        raise ValueError(f"its table is damaged: {error}") from None
    return [
        [_EMPHASIS.sub("", unescape(cell)) if "&" in cell or "<" in cell else cell for cell in row]
        for row in rows
        if any(row)
    ]


def _are_headings(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row is unlike the others: its label does not recur, its text is no sentence."""
    found = columns_of(rows[1:], rows[0])
    labels = [place for place, name in found.items() if name == "speaker"]
    texts = [place for place, name in found.items() if name == "text"]
    are_other = all(rows[0][place] not in {row[place] for row in rows[1:]} for place in labels)
    return (
        bool(labels)
        and are_other
        and all(
            len(rows[0][place].split()) <= _MAX_HEADING_WORDS and not ends_sentence(rows[0][place]) for place in texts
        )
    )


def _unwritten(entries: Sequence[Mapping[str, str]]) -> bool:
    """Whether empty speakers may not mean the one before: they are few, or a label is written again after them, without a
    change."""
    folded = [folded_keys(entry) for entry in entries]
    if all(map(speaker_of, folded)):
        return False
    spoken = [entry for entry in folded if (text := text_of(entry).strip()) and not _NOTE.fullmatch(text)]
    labels = list(map(speaker_of, spoken))
    if 0 < sum(not label for label in labels) < _FEW * len(labels):
        return True
    again = changed = 0
    before: str | None = None
    for previous, label in pairwise(labels):
        before = previous or before
        if label and not previous and before:
            again, changed = again + (label == before), changed + (label != before)
    return again > changed


def _entries(rows: Sequence[Sequence[str]], names: Sequence[str]) -> list[dict[str, str]]:
    """Returns the rows by the columns' names; what a row has too many belongs to its text, which has commas."""
    text = next(place for place, name in enumerate(names) if name and _knows_text([name]))
    entries = []
    for row in rows:
        more = max(0, len(row) - len(names))
        cells = [*row[:text], ", ".join(cell.strip() for cell in row[text : text + more + 1]), *row[text + more + 1 :]]
        entries.append({name: cell for name, cell in zip(names, cells, strict=False) if name and cell})
    return entries
