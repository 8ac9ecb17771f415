"""Decodes text files: UTF-8, UTF-16 and UTF-32 by byte order mark, else as `charset-normalizer` finds."""

from __future__ import annotations

import codecs
import re

from midthought.config.references import optional

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
