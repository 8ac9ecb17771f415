"""CHAT, the format of TalkBank's corpora: `*CHI:<tab>words`, headers that start with `@`, dependent tiers that start with `%`.

The codes within utterances are removed; the words stay as they were said.
"""

from __future__ import annotations

import re

from midthought.memory.formats.reading import Reading, Skipped
from midthought.memory.formats.registry import transcript_format
from midthought.memory.turns import Segment, clock_time

_START = re.compile(
    r"\s*(?:@(?:UTF8|Begin|Window|PID|Font|Languages|Options)\b.*\n\s*)+@(?:Begin|Languages|Participants)\b"
)
_UTTERANCE = re.compile(r"\*(?P<code>[^\s:]{1,20}):\s?(?P<said>.*)")
_HEADER = re.compile(r"@(?P<key>[^:\t]{1,60})(?::\s*(?P<value>.*))?")
_TIME = re.compile(r"\s(\d{1,9})_\d{1,9}\b")
"""Milliseconds at which an utterance starts and ends, between control characters."""
_CODES = re.compile(
    r"\[[^\[\]]*\]|[<>‹›〔〕]|\((?:\.{1,3}|[\d:.]{1,8})\)|(?<!\S)(?:&=\S+|0\S*|\+(?:[\"^<,]|\+|/\")(?=\s))"
)
"""Codes in brackets, pauses, sounds and gestures, words that were left out, links to the utterance before."""
_END = re.compile(r"(?<!\S)\+[\"/.!?]*([.?])(?=\s|$)")
_TRAILING_OFF = re.compile(r"(?<!\S)\+\.\.\.?")
_PREFIX = re.compile(r"(?<!\S)&[-+~](?=\w)")
_SUFFIX = re.compile(r"(?<=\w)@[a-z]{1,3}(?:\$\w+|:[\w+&]+)?")
_SHORTENED = re.compile(r"(?<=\w)\((\w{1,20})\)|\((\w{1,20})\)(?=\w)")
_BEFORE_SIGN = re.compile(r" (?=[.,?!…](?:\s|$))")


@transcript_format(
    "CHAT",
    suffixes=(".cha",),
    remedy="give it lines '*ANN:<tab>words' between '@Begin' and '@End'",
    shown_by=lambda text, suffix: bool(_START.match(text[:2000])),
)
def read_chat(text: str) -> Reading:
    """A line that starts with a tab continues the one before. The speaker is the code, such as `CHI`; names are in the header."""
    segments: list[Segment] = []
    header: list[tuple[str, str]] = []
    skipped: list[Skipped] = []
    for line in re.sub(r"\n[\t ]+", " ", text).split("\n"):
        if said := _UTTERANCE.match(line):
            time = _TIME.search(said["said"])
            words = spoken(_TIME.sub(" ", said["said"]))
            if any(map(str.isalnum, words)):
                segments.append(Segment(said["code"], words, clock_time(int(time[1]) / 1000) if time else None))
            else:
                skipped.append(Skipped(line, "no words, only codes"))
        elif (field := _HEADER.match(line)) and not segments:
            header += [(field["key"], field["value"])] if field["value"] else []
        elif line.strip() and line.strip() != "@End":
            skipped.append(Skipped(line, "dependent tier" if line.startswith("%") else "line between utterances"))
    title = next((value for key, value in header if key == "Title"), None)
    return Reading(title, segments, tuple(header), tuple(skipped), 0.97)


def spoken(utterance: str) -> str:
    """Returns an utterance without CHAT's codes: `<I want> [/] &-um I want agua@s:spa +...` gives `I want um I want agua …`."""
    words = _TRAILING_OFF.sub("…", _CODES.sub(" ", utterance))
    words = _SUFFIX.sub("", _PREFIX.sub("", _END.sub(r"\1", words)))
    return _BEFORE_SIGN.sub("", " ".join(_SHORTENED.sub(r"\1\2", words).split()))
