"""CSV and TSV with a row of column names, such as `start,speaker,text`: read like the entries of a JSON list."""

from __future__ import annotations

import csv

from midthought.memory.formats.json_documents import read_document
from midthought.memory.formats.json_entries import folded_keys, text_of
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format

_MAX_COLUMN_LETTERS = 30
_DELIMITERS = ",\t;|"


def _delimiter(line: str) -> str | None:
    """Returns what separates the columns if the line has names of columns, one of them of the text."""
    for sign in _DELIMITERS:
        names = [name.strip(' "') for name in line.strip().split(sign)]
        is_header = len(names) > 1 and all(0 < len(name) <= _MAX_COLUMN_LETTERS and name[0].isalpha() for name in names)
        if is_header and text_of(folded_keys(dict.fromkeys(names, "x"))) and len(set(names)) == len(names):
            return sign
    return None


def _is_table(text: str, suffix: str) -> bool:
    return suffix not in (".md", ".markdown") and _delimiter(text[:500].split("\n", 1)[0]) is not None


@transcript_format(
    "table",
    suffixes=(".csv", ".tsv"),
    remedy="give it a first line with the names of its columns, such as 'start,speaker,text'",
    shown_by=_is_table,
)
def read_table(text: str) -> Reading:
    """Each row is an entry; an empty speaker is the one before."""
    sign = _delimiter(text[:500].split("\n", 1)[0])
    if sign is None:
        raise ValueError("its first line has no column for the text")
    rows = csv.DictReader(
        text.split("\n"), delimiter=sign, quoting=csv.QUOTE_MINIMAL if sign == "," else csv.QUOTE_NONE
    )
    try:
        return read_document([{key: value for key, value in row.items() if key and value} for row in rows])
    except csv.Error as error:
        raise ValueError(f"its table is damaged: {error}") from None
