"""Signs, in every format, that what was read is not only speech: lines that recur, codes of a markup, too few words for the
time. Each lowers the confidence and is reported as a sentence."""

from __future__ import annotations

import re
from collections import Counter

import regex

from midthought.memory.formats.line_candidates import key_of
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.row_order import inner_labels
from midthought.memory.formats.scripts import word_count
from midthought.memory.formats.spoken_words import lacks_spoken_words
from midthought.memory.markup import unescape
from midthought.memory.turns import TIME_MARK, clock_seconds

_MIN_LINES = 20
_MIN_LINE_WORDS = 4
_MAX_RECURRING_SHARE = 0.4
_MAX_CODE_SHARE = 0.02
_MANY_CODES = 20
_MANY_CODES_SHARE = 0.004
_MIN_CODES = 3
_MIN_LETTERS = 5000
_MIN_READ_SHARE = 0.005
"""Words of a JSON file with a time for each are 5 % of it, of a saved page 4 %."""
_MIN_INNER_LABELS = 4
_MAX_INNER_SHARE = 0.3
_MIN_LOST = 5
_MAX_LOST_SHARE = 0.03
_NOTATION_SHARE = 0.7
_WORD = re.compile(r"[^\W\d_]\w+")
_UNREAD = re.compile(
    r"<[^<>]{0,500}>|\{\\[^{}]{0,500}\}|\]\([^()\s]*\)|https?://\S+|^WEBVTT|(?<=\d)\s?[AaPp]\.?[Mm]\b|(?<=\d)(?:\s+[A-Za-z]\w{0,20}:\S*)+$",
    re.MULTILINE,
)
"""Tags, addresses, and settings of cues."""
_MIN_WORDS_PER_SECOND = 0.15
"""People say two to three words per second; films with long silence have 0.3."""
_REPORTED = 1.2
"""Notes with names have at most this many times the least share of spoken words."""
_MIN_NOTES_WORDS = 120
_MAX_ASKED_SHARE = 0.05
_DATED = re.compile(r"\b\d{1,4}[./-]\d{1,2}[./-]\d{2,4},?\s(?:at\s)?\d{1,2}:\d{2}\b")
_MIN_DATES = 3
_MIN_DATES_SHARE = 0.02
_DIGITS = re.compile(r"\d+")
_VOICE = re.compile(r"(?i)\[?(?:speaker|spk)[_-]?\d{1,3}\]?[:：]?")
_CODE = re.compile(
    r"-->|\.(?:wav|mp3|flac|ogg|m4a|opus|webm)\b|=[0-9A-F]{2}(?:=|\W|$)|\\[a-zA-Z]{2,20}[{\[]|\{\\|\{\d{1,7}\}|</?(?:[a-z]|[A-Z]{2})[\w:]{0,20}(?:[\s>/]|$)|"
    r"^@(?:for|if|else|switch)$|#xywh=|\w=[\"']|\{[{%]|[%}]\}|&(?:#\d{1,6}|[a-z]{2,8});|â€|Ã[\x80-\xbf©¨¤¶¼]"
)
"""Quoted-printable, LaTeX, subtitle effects, frame numbers, tags, attributes, character references, wrong encodings,
templates of pages."""
_PROGRAM = re.compile(r"[=!<>+]=|\w\(\w*\)(?=[:;]?\s)|\w\[\d\]|(?<!\S)(?:[=<>]|def|elif)(?!\S)")
_MAX_PROGRAM_SHARE = 0.1
_OPTIONS = "options of a program"
_LISTS = {
    "items of a list": regex.compile(r"\s*[-*+•]\s+[^\s\p{Ll}].{0,400}[^\s.!?…。！？\"”’]\s*$"),
    "rows of a table": regex.compile(r"[^|]*\|[^|]*\|"),
    "links": regex.compile(r"\s*(?:[-*+•]\s+)?(?:\S+\s+){0,3}(?:\[[^\[\]]{1,99}\]\(\w|\[\[|https?://)"),
    _OPTIONS: regex.compile(r"\s*-\w{1,4}(?:\s[A-Z]\w{0,5})?,\s+--[a-z]"),
}
_MIN_LIST_LINES = 5
_MIN_LIST_SHARE = 0.5
_MIN_OPTION_SHARE = 0.2
_WRITTEN = {
    "a description of an episode": re.compile(
        r"(?i)^.{0,200}\b(?:(?:in )?this|\w{2,9}th) episode\b|^.{0,80}\b(?:is|are) joined by\b"
    ),
    "an instruction to a language model": re.compile(
        r"(?i)^\W{0,3}you are (?:an?|the) .{0,2000}\b(?:analy[sz]\w+|extract|identify|provide|respond|return|summari[sz]\w+)\b"
    ),
}
_MAX_WRITTEN_LETTERS = 1200
_LICENSE = re.compile(
    r"(?i)prior written permission|of the publisher|royalty-free|all rights (?:are )?reserved|terms (?:&|and) conditions"
)
_LICENSE_LETTERS = 5000
_MAX_LICENSE_SIGNS = 1
_MAX_SIGNS_SHARE = 0.6
_MAX_WORD_LETTERS = 45
_MIN_LONG_WORDS = 4
_MAX_LONG_SHARE = 0.1
"""Of the letters, in words that are longer than any that people say."""
_PLACEHOLDER = re.compile(r"\blorem,? ipsum,? dolor\b", re.IGNORECASE)
_NESTED = re.compile(r"\{\\rtf1|<!doctype|<\?xml\s|\bWEBVTT\b", re.IGNORECASE)
"""The start of a file within the text."""


def with_lost_words(reading: Reading, text: str) -> Reading:
    """Returns the reading of text with a doubt if words of the text are in none of its turns, names, header fields and skipped
    lines."""
    understood = [reading.title or "", *(word for field in reading.header for word in field)]
    understood += [skip.text for skip in reading.skipped]
    understood += [part for segment in reading.segments for part in (segment.speaker or "", segment.text)]
    known = {word for part in understood for word in _WORD.findall(part.casefold())}
    words = _WORD.findall(_UNREAD.sub(" ", unescape(text)).casefold())
    usual = _NOTATION_SHARE * len(reading.segments)  # words such as `says`, which every turn has
    lost = {word: num for word, num in Counter(words).items() if word not in known and not num >= usual > 2}
    num_lost = sum(lost.values())
    if num_lost <= max(_MIN_LOST, _MAX_LOST_SHARE * len(words)):
        return reading
    examples = ", ".join(map(repr, sorted(lost, key=lambda word: -lost[word])[:3]))
    return reading.doubted(f"{num_lost} words are neither speech nor a name nor a field, such as {examples}", 0.4)


def with_writing_doubts(reading: Reading, text: str) -> Reading:
    """Returns the reading with a doubt if a text without speakers and times was written: if most of its lines are items, rows,
    links or options, or if it is short and describes an episode or tells a language model what to do."""
    if any(segment.speaker or segment.time or TIME_MARK in segment.text for segment in reading.segments):
        return reading
    said = " ".join(segment.text for segment in reading.segments)
    if len(said) < _MAX_WRITTEN_LETTERS:
        for what, pattern in _WRITTEN.items():
            if pattern.search(said):
                return reading.doubted(f"it may be {what}, not a transcript", 0.4)
    lines = [line for line in text.split("\n") if line.strip()]
    for what, pattern in _LISTS.items():
        num = sum(bool(pattern.match(line)) for line in lines)
        share = _MIN_OPTION_SHARE if what == _OPTIONS else _MIN_LIST_SHARE
        if num >= max(_MIN_LIST_LINES, share * len(lines)):
            return reading.doubted(f"{num} of its {len(lines)} lines are {what}", 0.4)
    return reading


def with_speech_doubts(reading: Reading, num_letters: int = 0) -> Reading:
    """Returns the reading with doubts about text that is not speech. `num_letters`: of the file, if it is text."""
    texts = [segment.text for segment in reading.segments if segment.text.strip()]
    lines = [_DIGITS.sub("#", text) for text in texts if len(text.split()) >= _MIN_LINE_WORDS]
    num_again = len(lines) - len(set(lines))
    if len(lines) >= _MIN_LINES and num_again > _MAX_RECURRING_SHARE * len(lines):
        most = Counter(lines).most_common(1)[0][0]
        reading = reading.doubted(f"{num_again} of {len(lines)} lines recur, as in a log: {most[:50]!r}", 0.4)
    words = [word for text in texts for word in text.split()]
    codes = [word for word in words if _CODE.search(word)]
    programs = [code for text in texts for code in _PROGRAM.findall(text)]
    codes = programs if len(programs) > _MAX_PROGRAM_SHARE * len(words) else codes
    are_many = len(codes) >= _MANY_CODES and len(codes) > _MANY_CODES_SHARE * len(words)
    if are_many or len(codes) > max(_MIN_CODES, _MAX_CODE_SHARE * len(words)):
        reading = reading.doubted(f"{len(codes)} words have codes of a markup: {codes[0][:30]!r}", 0.4)
    signs = [word for word in words if word.isascii() and (word.isdecimal() or (len(word) == 1 and word.isalpha()))]
    if len(signs) > max(_MIN_LINES, _MAX_SIGNS_SHARE * len(words)):
        reading = reading.doubted(f"{len(signs)} of {len(words)} words are single letters or numbers", 0.4)
    long = [word for word in words if len(word) > _MAX_WORD_LETTERS and word.isascii() and "/" not in word]
    if len(long) >= _MIN_LONG_WORDS and sum(map(len, long)) > _MAX_LONG_SHARE * sum(map(len, words)):
        reading = reading.doubted(f"{len(long)} words are too long for words, such as {long[0][:30]!r}", 0.4)
    first = " ".join(texts[:_MIN_LINES])[:_LICENSE_LETTERS]
    if len(signs := _LICENSE.findall(first)) > _MAX_LICENSE_SIGNS:
        reading = reading.doubted(f"it starts with a license: {signs[0]!r}", 0.4)
    if nested := next(filter(None, map(_NESTED.search, texts)), None):
        reading = reading.doubted(f"its text has the start of another file: {nested[0]!r}", 0.4)
    are_turns = all(segment.speaker and segment.time for segment in reading.segments)
    if any(map(_PLACEHOLDER.search, texts)) and not are_turns:
        reading = reading.doubted("it has the words of a placeholder: 'Lorem ipsum'", 0.4)
    inner = Counter(key for text in texts for _, key in inner_labels(text))
    recurring = {key: count for key, count in inner.items() if count > 1}
    known = {key_of(segment.speaker) for segment in reading.segments if segment.speaker}
    num_known = sum(count for key, count in inner.items() if key in known)
    num_usual = max(_MIN_INNER_LABELS, _MAX_INNER_SHARE * len(texts))
    if (len(recurring) > 1 and sum(recurring.values()) >= num_usual) or num_known > max(1, 0.01 * len(texts)):
        names = ", ".join(repr(key) for key, _ in inner.most_common(3))
        reading = reading.doubted(f"labels within the text recur, as names of speakers do: {names}", 0.4)
    is_timed = any(segment.time or TIME_MARK in segment.text for segment in reading.segments)
    is_named = any(segment.speaker for segment in reading.segments)
    num_asked = sum("?" in text for text in texts)
    is_asked = len(words) < _MIN_NOTES_WORDS or num_asked > _MAX_ASKED_SHARE * len(texts)
    if is_named and not is_timed and not is_asked and lacks_spoken_words(" ".join(texts), _REPORTED):
        what = f"in {len(words)} words nobody says I, you or we: it may be notes about what people said"
        reading = reading.doubted(what, 0.3)
    dates = [date for text in texts for date in _DATED.findall(text)]
    if len(dates) >= _MIN_DATES and len(dates) > _MIN_DATES_SHARE * len(words):
        reading = reading.doubted(f"{len(dates)} dates with times are within speech, such as {dates[0]!r}", 0.4)
    if not is_named:
        if not is_timed and lacks_spoken_words(" ".join(texts)):
            what = f"in {len(words)} words nobody says I, you or we: it may be an article, not a transcript"
            reading = reading.doubted(what, 0.3)
        labels = [word for word in words if word[-1:] in ":]：" and _VOICE.fullmatch(word)]
        if len(labels) > 1:
            reading = reading.doubted(f"{len(labels)} labels of speakers were read as words: {labels[0]!r}", 0.4)
    num_read = sum(map(len, texts))
    if num_letters > _MIN_LETTERS and num_read < _MIN_READ_SHARE * num_letters:
        reading = reading.doubted(f"only {len(words)} words were found in a file of {num_letters:,} letters", 0.4)
    return _with_rate_doubt(reading)


def _with_rate_doubt(reading: Reading) -> Reading:
    """Returns the reading with a doubt if the times of text without speakers leave minutes for a few words, as chapters do."""
    times = [clock_seconds(segment.time) for segment in reading.segments if segment.time]
    if len(times) < 3 or any(segment.speaker for segment in reading.segments):
        return reading
    said, seconds = sum(word_count(segment.text) for segment in reading.segments), max(times) - min(times)
    if said >= _MIN_WORDS_PER_SECOND * seconds:
        return reading
    what = f"{said} words in {seconds // 60} minutes are too few for speech: its times may belong to chapters"
    return reading.doubted(what, 0.4)
