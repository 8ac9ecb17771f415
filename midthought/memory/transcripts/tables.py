"""Tables with named columns: CSV, TSV and Parquet. Their rows are read as entries of JSON are."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midthought.data.rows import rows_of
from midthought.memory.transcripts.json import TEXT, folded, segments_of
from midthought.memory.transcripts.reading import Reading, damage_refused

_MAX_LETTERS = 2**28


def read_csv(text: str) -> Reading:
    """Reads rows below a row of column names. The separator is the most frequent of comma, semicolon and tab in that row."""
    first = text.lstrip("\n").split("\n", 1)[0]
    separator = max(",;\t", key=first.count)
    with damage_refused("CSV"):
        rows = list(csv.DictReader(io.StringIO(text.lstrip("\n")), delimiter=separator))
    return _read(rows)


def read_parquet(path: Path) -> Reading:
    """Reads the rows of a file. Raises ValueError if they are damaged or have more than 2 ** 28 letters."""
    rows, num_letters = [], 0
    with damage_refused("Parquet"):
        for row in rows_of(path):
            num_letters += sum(len(value) for value in row.value.values() if isinstance(value, str))
            if num_letters > _MAX_LETTERS:
                raise ValueError(f"its texts have more than {_MAX_LETTERS:,} letters; split it by episode")
            rows.append(row.value)
    return _read(rows)


def _read(rows: Sequence[Mapping[str, Any]]) -> Reading:
    names = list(rows[0]) if rows else []
    if not set(TEXT) & set(folded(dict.fromkeys(filter(None, names)))):
        raise ValueError(f"it has no column named text or transcript; its columns are {', '.join(map(str, names))!r}")
    return Reading(None, segments_of(rows))
