"""Removes markup from text: Markdown, tags, escapes, inline timestamps. Every step takes linear time.

Does not depend on file formats: each format decides which of its text is Markdown.
"""

from __future__ import annotations

import html
import re

from midthought.memory.turns import CLOCK, TIME_MARK, clock_time

_INLINE_TIME = re.compile(rf"\\?\[{{1,2}}\s*({CLOCK})(?:\s?(?:-->|[-–—])\s?{CLOCK})?\s*\\?\](?:\([^()\s]*\))?\]?")
_TIME_RANGE = re.compile(rf"{TIME_MARK}[\d:]+\s+(?:to|[-–—])\s+({TIME_MARK})")
_NOTE_WITH_TIME = re.compile(rf"(\\?\[[^\[\]\d]{{1,60}}?)\s{CLOCK}\s?(\\?\])")
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
# spans are bounded or end at the next opening character, so that matching takes linear time
_CODE = re.compile(r"(`{1,3})([^`]{1,500})\1")
_TAG = re.compile(
    r"</?(?:a|b|br|cite|code|em|i|kbd|mark|p|s|small|span|strong|sub|sup|u)\b[^<>]{0,500}>", re.IGNORECASE
)
_AUTOLINK = re.compile(r"<(\w{1,20}:[^<>\s]+)>")
_IMAGE = re.compile(r"!\[[^\[\]]*\]\((?:[^()]|\([^()]*\))*\)")
_LINK = re.compile(r"\[([^\[\]]*)\](?:\((?:[^()]|\([^()]*\))*\)|\[[^\[\]]*\])")
_STARS = re.compile(r"(\*{1,3})(?=[^\s*])([^*]{1,500}?)(?<=[^\s*])\1")
_UNDERLINES = re.compile(r"(?<!\w)(_{1,3})(?=[^\s_])((?:[^_]|(?<=\w)_(?=\w)){1,500}?)(?<=[^\s_])\1(?!\w)")
_STRUCK = re.compile(r"~~(?=\S)([^~]{1,500}?)(?<=\S)~~")
_MARKUP_SIGN = re.compile(r"[`\\<\[*_~&]")
_LONG_REFERENCE = re.compile(r"&#[xX]?[0-9a-fA-F]{8,};?")
_LEFT_REFERENCE = re.compile(r"&(?:#\d{2,7}|#[xX][0-9a-fA-F]{2,6}|amp|quot|apos|nbsp);")

_PRIVATE = 0xE000  # escaped punctuation is moved to the private use area while markup is removed
_TO_PRIVATE = {code: chr(_PRIVATE + code) for code in range(0x21, 0x7F) if not chr(code).isalnum()}
_FROM_PRIVATE = {_PRIVATE + code: chr(code) for code in _TO_PRIVATE}


def mark_times(text: str) -> str:
    r"""Replaces `[00:04:01.06]` and `\[04:01\]` by time marks that `turns_of` reads; of a range, its end.

    A note such as `[unintelligible 00:04:01]` keeps its words and loses its timestamp, which often refers to another
    edit. Whitespace becomes single blanks.
    """
    text = " ".join(text.split())
    if "[" not in text and TIME_MARK not in text:
        return text
    text = _INLINE_TIME.sub(lambda match: f" {TIME_MARK}{clock_time(match[1])} ", text)
    return _NOTE_WITH_TIME.sub(r"\1\2", _TIME_RANGE.sub(r"\1", text))


def plain_words(markdown: str) -> str:
    """Returns the words of Markdown text without links, emphasis, code marks, tags and escapes; inline timestamps
    become time marks."""
    text = mark_times(markdown)
    if not _MARKUP_SIGN.search(markdown):
        return text
    text = _CODE.sub(lambda match: match[2].translate(_TO_PRIVATE), text)
    text = _ESCAPED.sub(lambda match: match[1].translate(_TO_PRIVATE), text)
    text = _AUTOLINK.sub(r"\1", without_comments(text))
    text = _TAG.sub(" ", text)
    text = _LINK.sub(r"\1", _IMAGE.sub(" ", text))
    for markup in (_STARS, _UNDERLINES):
        for _ in range(2):  # emphasis within emphasis
            text = markup.sub(r"\2", text)
    text = unescape(_STRUCK.sub(r"\1", text))
    return " ".join(text.translate(_FROM_PRIVATE).split())


def unescape(text: str) -> str:
    """Replaces HTML character references such as `&amp;`, quotation
    marks also if escaped twice; invalid code points become `\\ufffd`."""
    if "&" not in text:
        return text
    text = html.unescape(_LONG_REFERENCE.sub("\ufffd", text))
    return _LEFT_REFERENCE.sub(lambda match: html.unescape(match[0]), text) if "&" in text else text


def without_comments(text: str) -> str:
    """Replaces every `<!-- … -->` by a blank; an unterminated one stays."""
    pieces: list[str] = []
    start = 0
    while (begin := text.find("<!--", start)) >= 0 and (end := text.find("-->", begin + 4)) >= 0:
        pieces += [text[start:begin], " "]
        start = end + 3
    return "".join([*pieces, text[start:]])
