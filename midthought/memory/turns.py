"""Turns of an episode (speaker, text and timestamps), built from the segments that sources have; labels and counts of words;
markup that is removed from their text, in linear time. Does not depend on files or formats: each decides which of its text is
Markdown.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass

import regex

UNKNOWN_SPEAKER = "Unknown Speaker"
"""Speaker of text whose source does not name one: of a whole transcript, or of the text before the first named speaker."""

CLOCK = r"(?:\d{1,3}:\d{1,2}:\d{1,2}|\d{1,3}:\d{2})(?:[.,]\d{1,9})?"
"""`MM:SS` or `HH:MM:SS`, with an optional fraction, for the regular expressions of the formats."""

TIME_MARK = "\ue100"
"""Marks a timestamp among the words of a segment (`mark_times`)."""

_MAX_SECONDS = 3_600_000
_UNUSABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ue000-\uf8ff\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Turn:
    """The words of one speaker until another one speaks."""

    speaker: str
    text: str
    """Plain words, separated by single blanks; never empty."""
    time: str | None = None
    """`HH:MM:SS` of the first word, None if the source has no timestamp."""
    marks: tuple[tuple[int, str], ...] = ()
    """Timestamps within the turn: (number of words before it, `HH:MM:SS`), in order, each number > 0."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A unit of speech in a source: a cue, a line, a paragraph, a turn."""

    speaker: str | None
    """None: the previous speaker."""
    text: str
    """Plain words, optionally with time marks."""
    time: str | None = None
    """`HH:MM:SS` of the first word."""
    begins_turn: bool = False
    """True if it starts a new turn, even if the same speaker spoke before."""


def turns_of(segments: Iterable[Segment]) -> list[Turn]:
    """Joins consecutive segments of one speaker into turns; drops turns without words."""
    turns: list[Turn] = []
    speaker: str | None = None
    words: list[str] = []
    times: dict[int, str] = {}  # by the number of words before it; the last of several at one position

    def end_turn() -> None:
        trailing = times.pop(len(words), None)  # a timestamp after the last word belongs to the next turn
        if words:
            start = times.pop(0, None)
            turns.append(Turn(speaker or UNKNOWN_SPEAKER, " ".join(words), start, tuple(sorted(times.items()))))
        words.clear()
        times.clear()
        if trailing is not None:
            times[0] = trailing

    for segment in segments:
        if segment.begins_turn or (segment.speaker is not None and segment.speaker != speaker):
            end_turn()
            speaker = segment.speaker
        if segment.time is not None:
            times[len(words)] = segment.time
        for word in segment.text.split():
            if word.startswith(TIME_MARK) and (marked := clock_time(word[1:])):
                times[len(words)] = marked
            else:
                words.append(word)
    end_turn()
    return turns


def clock_time(value: object) -> str | None:
    """Converts seconds or a written time (`75:10`, `1:02:03.5`, `12.5`) to `HH:MM:SS`, truncating fractions; None if it
    is not a time."""
    if isinstance(value, str):
        value = value.strip()
        if re.fullmatch(CLOCK, value):
            seconds = 0
            for part in re.split("[.,]", value)[0].split(":"):
                seconds = seconds * 60 + int(part)
        elif re.fullmatch(r"\d{1,7}(?:\.\d{1,20})?", value):
            seconds = int(value.partition(".")[0])
        else:
            return None
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MAX_SECONDS:
        seconds = int(value)
    else:
        return None
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}" if seconds < _MAX_SECONDS else None


def clock_seconds(time: str) -> int:
    """Returns the seconds of `HH:MM:SS`."""
    hours, minutes, seconds = map(int, time.split(":"))
    return 3600 * hours + 60 * minutes + seconds


def without_unusable_characters(text: str) -> str:
    """Replaces control characters, lone surrogates and private-use characters by blanks.

    They could not be stored as UTF-8, or would be taken for time marks.
    """
    return text if text.isprintable() else _UNUSABLE.sub(" ", text)


# -- labels of voices, and counts of words

UNSPACED_LETTER = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
"""For the package `regex`: a letter of a script that writes no blanks between words."""
_UNSPACED_LETTERS = regex.compile(UNSPACED_LETTER)
_UNSPACED_LETTERS_PER_WORD = 2
_VOICE = regex.compile(r"(?i)(?:speaker|spk|s)[ _#\-]*\d{1,3}|speaker[ _#\-]+[a-z]|(?-i:[A-Z])")


def is_diarization_label(text: str) -> bool:
    """True for labels that stand for a voice, not a name: `SPEAKER_00`, `spk_1`, `Speaker A`, `S2`, `A`."""
    return bool(_VOICE.fullmatch(text.strip()))


def word_count(text: str) -> int:
    """Returns the number of words; two letters of a script without blanks between words count as one."""
    return len(text.split()) + (
        0 if text.isascii() else len(_UNSPACED_LETTERS.findall(text)) // _UNSPACED_LETTERS_PER_WORD
    )


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
