"""Decodes the bytes of a file: UTF-8, UTF-16 and UTF-32 by byte order mark, as XML and HTML declare, Windows-1252, 1250 or 1254
if nothing contradicts it.

Korean, Japanese, Chinese, Cyrillic, Arabic, Hebrew, Greek and Thai text in an older encoding is read if its usual letters show
one only. Text in another encoding is refused with a reason.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from typing import NamedTuple

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is its prefix
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BINARY = {
    b"ID3": "an MP3",
    b"\x1f\x8b": "a gzip file",
    b"\xd0\xcf\x11\xe0": "an old Office file",
}
_UTF8_SIGN = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_DECLARED = re.compile(
    rb"""<(?:\?xml|meta)\b[^<>]{0,200}?(?:encoding|charset)\s{0,9}=\s{0,9}["']?([\w-]{2,20})""", re.IGNORECASE
)
_AS_ON_THE_WEB = {"iso-8859-1": "cp1252", "latin1": "cp1252", "latin-1": "cp1252", "us-ascii": "cp1252"}
_HEAD_BYTES = 2000
_PLAIN_SIGNS = bytes(range(32, 92)) + bytes(range(93, 127)) + rb" \n\x41\u0041 +AGE- "
"""All signs of ASCII, and what encodings of program code and of e-mails read as other signs."""
_WESTERN = frozenset("ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜßàáâãäåæçèéêëìíîïñòóôõöøùúûüÿŒœ‘’‚“”„«»‹›–—…•·€£¥§©®™°´¿¡¼½¾ºª\xa0")
_ALPHABETS = tuple(map(frozenset, (
    "àâæçéèêëîïôœùûüÿ", "àáâãçéêíóôõúü", "àáçèéíïñòóúü", "àèéìíîòóùú", "äéößü", "åäæéôöø", "äõöšüž", "áæðéíóöúýþ", "áèéëïóöü",
)))  # fmt: skip
"""Letters beside a to z of French, Portuguese, Spanish and Catalan, Italian, German, Nordic languages, Estonian, Icelandic,
Dutch."""
_CENTRAL = (
    frozenset("ąćęłńóśźż"),
    frozenset("áčďéěíňóřšťúůýž"),
    frozenset("áäčďéíĺľňóôŕšťúýž"),
    frozenset("áéíóöőúüű"),
    frozenset("ăâîşţ"),
    frozenset("čćđšž"),
)
"""The same of Polish, Czech, Slovak, Hungarian, Romanian, and Croatian and Slovene."""
_EUROPEAN = (("cp1252", _ALPHABETS, 0.12), ("cp1250", _CENTRAL, 0.2), ("cp1254", (frozenset("çğıöşüâîû"),), 0.2))
"""Encodings, their alphabets and the largest share of letters beyond ASCII: 8 % of French, 14 % of Czech, a third of others'
bytes."""
_MIN_LETTERS = 3
_MIN_LETTERS_SHARE = 0.03

_ASCII = re.compile(r"[\x00-\x7f\u3000-\u303f\uff00-\uffef“”‘’…—–·«»]+")
_MIN_LEGACY_LETTERS = 60
_MAX_UTF8_SHARE = 0.1
_KANA = "".join(map(chr, range(0x3041, 0x30FF)))
_LEGACY = {
    "cp949": ("이다는가을를의에지고하기도로서니나어자한그아라시요", 0.2),
    "cp932": (_KANA, 0.4),
    "euc-jp": (_KANA, 0.4),
    "gb18030": ("的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自", 0.2),
    "big5": ("的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自", 0.2),
    "cp1251": ("аеинот", 0.36),
    "koi8-u": ("аеинот", 0.36),
    "cp1256": ("اليمنوره", 0.4),
    "cp1255": ("יוהלאתרמ", 0.48),
    "cp1253": ("αοιετσνη", 0.42),
    "cp874": ("านรอกเงมย", 0.32),
}
"""Older encodings: usual letters of their languages, and the least share of these among the letters beyond ASCII."""


class Decoded(NamedTuple):
    """A file's text and its encoding."""

    text: str
    encoding: str


def decode(content: bytes) -> Decoded:
    """Returns the text without a byte order mark. Raises ValueError with the reason and the remedy if the encoding is
    uncertain."""
    for magic, kind in _BINARY.items():
        if content.startswith(magic):
            raise ValueError(f"it is {kind}, not text; export its words as text, .docx, SRT, VTT or JSON")
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            try:
                return Decoded(content[len(mark) :].decode(encoding), encoding)
            except UnicodeDecodeError as error:
                position = error.start + len(mark)
                raise ValueError(
                    f"it is not whole {encoding.upper()} text (byte {position}); save it as UTF-8"
                ) from None
    if b"\0" in content[:4096]:
        return Decoded(_unmarked_utf16(content), "utf-16")
    try:
        return Decoded(content.decode("utf-8"), "utf-8")
    except UnicodeDecodeError as error:
        return _declared(content) or _without_mark(content, error.start)


def _declared(content: bytes) -> Decoded | None:
    """Decodes XML or HTML as it says, unless most of its letters are UTF-8, or the encoding has other signs for ASCII."""
    if not (found := _DECLARED.search(content[:_HEAD_BYTES])):
        return None
    declared = found[1].decode("ascii").lower()
    encoding = _AS_ON_THE_WEB.get(declared, declared)
    try:
        if _PLAIN_SIGNS.decode(encoding) != _PLAIN_SIGNS.decode("ascii"):
            return None
        text = content.decode(encoding)
    except (LookupError, UnicodeError):
        return None
    num_foreign = sum(len(part) for part in re.findall(rb"[\x80-\xff]+", content))
    is_utf8 = 2 * sum(map(len, _UTF8_SIGN.findall(content))) > num_foreign
    return None if is_utf8 else Decoded(text, encoding)


def _unmarked_utf16(content: bytes) -> str:
    """Decodes text whose every second byte is 0, as Western text in UTF-16."""
    head = content[:4096]
    for offset, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros = head[offset::2].count(0)
        if zeros > 0.8 * len(head[offset::2]) and zeros > 10 * head[1 - offset :: 2].count(0):
            try:
                return content.decode(encoding)
            except UnicodeDecodeError:
                break
    raise ValueError("it has NUL bytes, so it is not text; save the file as UTF-8")


def _without_mark(content: bytes, position: int) -> Decoded:
    """Decodes Windows-1252, else an older encoding of another script, if it is the only one in which many letters are usual
    ones."""
    try:
        return _european(content, position)
    except ValueError as refusal:
        found: list[Decoded] = []
        num_damaged = content.decode("utf-8", "replace").count("\ufffd")
        for encoding, (letters, least) in _LEGACY.items():
            try:
                text = content.decode(encoding)
            except UnicodeDecodeError:
                continue
            num_foreign = len(_ASCII.sub("", text))
            num_signs = len(_UTF8_SIGN.findall(content))
            if len(text) == len(content) and _MAX_UTF8_SHARE * num_foreign < num_signs and num_damaged < num_signs:
                continue  # damaged UTF-8, whose first bytes are usual letters
            if num_foreign >= _MIN_LEGACY_LETTERS and sum(map(text.count, letters)) >= least * num_foreign:
                found.append(Decoded(text, encoding))
        if len(found) == 1:
            return found[0]
        raise refusal


def _european(content: bytes, position: int) -> Decoded:
    """Decodes Windows-1252, 1250 or 1254: the first in which one language has all usual letters. Raises ValueError if it may be
    another encoding; `position` is the first byte that is not UTF-8."""
    refusal = ValueError(f"it is not UTF-8 text (byte {position}); save the file as UTF-8")
    if _UTF8_SIGN.search(content):
        raise refusal  # UTF-8 with a damaged byte: the others would be garbled
    for encoding, alphabets, max_share in _EUROPEAN:
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        foreign = [sign for sign in text if sign > "\x7f"]
        counts = Counter(sign for sign in text.lower() if sign > "\x7f" and sign.isalpha())
        letters = frozenset().union(*alphabets) if encoding != "cp1252" else _WESTERN
        are_known = all(
            sign in _WESTERN if not sign.isalpha() else sign.lower() in letters or sign in letters for sign in foreign
        )
        usual = {sign for sign, num in counts.items() if num >= max(_MIN_LETTERS, _MIN_LETTERS_SHARE * counts.total())}
        if are_known and len(foreign) <= max_share * len(text) and any(usual <= each for each in alphabets):
            return Decoded(text, encoding)
    raise refusal  # no language has all of them
