"""Records as programs print them, one per line: `Segment(start=0.5, text='So', speaker='Ann')`, `Turn{name='Ann', text='So'}`."""

from __future__ import annotations

import re

from midthought.memory.formats.json_documents import read_document
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format

_RECORD = re.compile(r"\s*[A-Za-z_][\w.]{0,60}(?P<open>[({])\s?(?P<fields>[a-z_]\w{0,40}=.*)(?P<close>[)}]),?\s*")
_FIELD = re.compile(r"(?:^|, ?)([a-z_]\w{0,40})=(?=['\"\d\[{(\-]|None\b|true\b|false\b|null\b)", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(?:([ntr\\'\"])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
_BLANKS = {"n": "\n", "t": "\t", "r": "\r"}
_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,12})?")
_EMPTY = frozenset({"None", "null"})
_MIN_RECORDS = 3
_MAX_LETTERS = 20_000


@transcript_format(
    "printed records",
    remedy="write each record on one line, with its text in quotation marks",
    shown_by=lambda text, suffix: bool(printed_records(text)),
)
def read_printed_records(text: str) -> Reading:
    """Reads the records as `read_document` reads the entries of JSON."""
    return read_document(printed_records(text))


def printed_records(text: str) -> list[dict[str, object]]:
    """Returns the records if all lines are records of two or more fields with the same first key; else nothing."""
    if not _RECORD.match(text.lstrip()[:_MAX_LETTERS].partition("\n")[0]):
        return []
    lines = [line for line in text.split("\n") if line.strip()]
    found = [match for line in lines if len(line) < _MAX_LETTERS and (match := _RECORD.fullmatch(line))]
    records = [_values(match["fields"]) for match in found]
    are_alike = len({next(iter(each), "") for each in records}) == 1 and all(len(each) > 1 for each in records)
    return records if are_alike and len(records) == len(lines) >= _MIN_RECORDS else []


def _values(fields: str) -> dict[str, object]:
    """Returns the values by key; a comma and a word with `=` in a quoted text start no field."""
    starts: list[re.Match[str]] = []
    for match in _FIELD.finditer(fields):
        opened = fields[starts[-1].end() : match.start()] if starts else ""
        if not opened[:1] or opened[0] not in "'\"" or (len(opened) > 1 and opened[-1] == opened[0]):
            starts.append(match)
    ends = [*(match.start() for match in starts[1:]), len(fields)]
    return {match[1]: _value(fields[match.end() : end].strip()) for match, end in zip(starts, ends, strict=True)}


def _value(text: str) -> object:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return _ESCAPED.sub(_sign, text[1:-1])
    if _NUMBER.fullmatch(text):
        return float(text)
    return None if text in _EMPTY else text


def _sign(match: re.Match[str]) -> str:
    """Returns the sign that is written as `\\n`, `\\'` or `\\u2019`."""
    return _BLANKS.get(match[1], match[1]) if match[1] else chr(int(match[2] or match[3], 16))
