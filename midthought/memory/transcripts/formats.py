"""The formats of transcripts: a file's encoding, its format, detected from its content, and what reads it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from midthought.config.references import optional
from midthought.errors import MissingExtraError, TranscriptError
from midthought.memory.transcripts.documents import (
    CUE_TIME,
    html_text,
    is_html,
    pdf_text,
    read_ass,
    read_srt,
    read_vtt,
    word_text,
)
from midthought.memory.transcripts.folder_settings import FILE_NAME as NOTATION_FILE
from midthought.memory.transcripts.folder_settings import DeclaredNotation, NotationError
from midthought.memory.transcripts.json import is_json, read_csv, read_json, read_parquet
from midthought.memory.transcripts.reading import Reading
from midthought.memory.transcripts.text import Text, is_markdown, markdown_text, plain_text, read_lines
from midthought.memory.turns import without_unusable_characters

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is its prefix
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ENCODINGS = (
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "koi8_r",
    "cp932", "euc_jp", "gb18030", "big5", "cp949", "cp874",
)  # fmt: skip
"""Encodings that are considered; of two that fit as well, the first is taken."""
_UTF8_SIGN = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")

_SAMPLE_BYTES = 2**20
_LINES = f"write each turn as {{}}, or declare in {NOTATION_FILE} how turns start"
_CUES = "give it cues with '{0}' and words"
_COLUMNS = "name its columns speaker, text, start"
_FORMATS = {
    "Markdown": ((".md", ".markdown"), _LINES.format("'**Speaker:** text'")),
    "text": ((".txt", ".text"), _LINES.format("'Name (00:00:29):' or 'Name: text'")),
    "HTML": ((".html", ".htm"), _LINES.format("'<cite>Name:</cite> <time>0:29</time> <p>text</p>'")),
    "Word": ((".docx",), _LINES.format("'Name: text'")),
    "PDF": ((".pdf",), _LINES.format("'Name: text'")),
    "JSON": (
        (".json",),
        "give it {'speakers', 'episode', 'content': [{'speaker', 'transcript', 'time'}]} or {'segments': [...]}",
    ),
    "SRT": ((".srt",), _CUES.format("00:00:01,000 --> 00:00:02,000")),
    "VTT": ((".vtt",), _CUES.format("00:00:01.000 --> 00:00:02.000")),
    "ASS": ((".ass", ".ssa"), "give it lines 'Dialogue: 0,0:00:01.00,0:00:02.00,Default,Name,0,0,0,,text'"),
    "CSV": ((".csv", ".tsv"), _COLUMNS),
    "Parquet": ((".parquet",), _COLUMNS),
}
"""The suffixes of the files of each format, and how to write one."""
_BINARY = {b"PK\x03\x04": "Word", b"%PDF-": "PDF", b"PAR1": "Parquet"}
"""Formats by their first bytes."""
_READERS: dict[str, Callable[[Any], Text | Reading]] = {
    "Markdown": markdown_text, "text": plain_text, "HTML": html_text, "Word": word_text, "PDF": pdf_text, "JSON": read_json,
    "SRT": read_srt, "VTT": read_vtt, "ASS": read_ass, "CSV": read_csv, "Parquet": read_parquet,
}  # fmt: skip
"""Take the text; Word and PDF the bytes of the file, Parquet its path."""
_NUM_FIRST_LINES = 8


def decode(content: bytes) -> tuple[str, str]:
    """Returns the text without a byte order mark, and its encoding. Raises ValueError with the reason and the remedy."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            try:
                return content[len(mark) :].decode(encoding), encoding
            except UnicodeDecodeError as error:
                position = error.start + len(mark)
                raise ValueError(
                    f"it is not whole {encoding.upper()} text (byte {position}); save it as UTF-8"
                ) from None
    if b"\0" in content:
        raise ValueError("it has NUL bytes, so it is not text; export its words as text, .docx, SRT, VTT or JSON")
    try:
        return content.decode("utf-8"), "utf-8"
    except UnicodeDecodeError as error:
        position = error.start
    refusal = ValueError(f"it is not UTF-8 text (byte {position}), nor in a known encoding; save the file as UTF-8")
    sample = content[max(0, position - _SAMPLE_BYTES) : position + _SAMPLE_BYTES]
    if sample.decode("utf-8", "replace").count("\ufffd") <= len(_UTF8_SIGN.findall(sample)):
        raise refusal  # damaged UTF-8, which other encodings would garble
    matches = optional("charset_normalizer", "memory").from_bytes(content, cp_isolation=list(_ENCODINGS))
    found = [each for each in matches if each.encoding in _ENCODINGS]
    if not found:
        raise refusal
    best = min(found, key=lambda each: (each.chaos, -each.coherence, _ENCODINGS.index(each.encoding)))
    return str(best), best.encoding


def suffixes() -> list[str]:
    """Returns the suffixes that are read in a folder (besides files without one)."""
    return [suffix for suffixes, _ in _FORMATS.values() for suffix in suffixes]


def remedy(form: str) -> str:
    """Returns how to write a file of a format."""
    return _FORMATS[form][1]


def understood(path: Path, content: bytes, notation: DeclaredNotation | None) -> tuple[str, str, Reading]:
    """Returns the format, the encoding and what was read. Raises TranscriptError with the file, the reason and the remedy."""
    form = next((name for sign, name in _BINARY.items() if content.startswith(sign)), "")
    source: object = path if form == "Parquet" else content
    encoding = "binary"
    try:
        if not form:
            source, encoding = _text(content)
            form = _form_of(source, path.suffix.lower())
        return form, encoding, _read(form, source, notation)
    except NotationError as error:
        raise TranscriptError(f"{path}: {error}; correct {NOTATION_FILE}") from None
    except MissingExtraError as error:
        raise TranscriptError(f"{path}: {error}") from None
    except ValueError as error:
        raise TranscriptError(f"{path}: {error}" + (f"; {remedy(form)}" if form else "")) from None


def _text(content: bytes) -> tuple[str, str]:
    written, encoding = decode(content)
    text = without_unusable_characters(written.replace("\r\n", "\n").replace("\r", "\n"))
    if not text.strip():
        raise ValueError("it is empty; give a file with words, or remove it")
    return text, encoding


def _form_of(text: str, suffix: str) -> str:
    """Returns the format that the text shows."""
    head = "\n".join(islice((line for line in text.split("\n") if line.strip()), _NUM_FIRST_LINES))
    if text.startswith("WEBVTT"):
        return "VTT"
    if head.lstrip().startswith("[Script Info]"):
        return "ASS"
    if is_json(text, suffix):
        return "JSON"
    if CUE_TIME.search(text if suffix in (".srt", ".vtt") else head):
        return "SRT"
    if is_html(text, suffix):
        return "HTML"
    return "CSV" if suffix in (".csv", ".tsv") else "Markdown" if is_markdown(text, suffix) else "text"


def _read(form: str, source: object, notation: DeclaredNotation | None) -> Reading:
    found = _READERS[form](source)
    if isinstance(found, Text):
        return notation.read(found) if notation else read_lines(found)
    if notation:
        raise ValueError(
            f"the format {form} has no lines to which the notation applies that {NOTATION_FILE} declares for it; "
            "declare it for the other files only"
        )
    return found
