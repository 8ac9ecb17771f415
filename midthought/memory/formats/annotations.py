"""Timed annotations of programs: ELAN (.eaf), Transcriber (.trs), Praat's TextGrid; XML of video services.

The markup is scanned for its tags, in linear time, so that entities and nesting cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from midthought.memory.formats.captions import Cue, read_cues
from midthought.memory.formats.reading import Reading, name_of
from midthought.memory.formats.registry import transcript_format
from midthought.memory.formats.tiers import Annotation, speakers_of_tiers, spoken_tiers, without_codes
from midthought.memory.formats.timed_text import elements
from midthought.memory.markup import unescape
from midthought.memory.turns import clock_time

_START = re.compile(
    r"\s*(?:<\?xml[^<>]*>\s*)?(?:<!DOCTYPE Trans [^<>]*>\s*)?<(?:transcript|timedtext|ANNOTATION_DOCUMENT|Trans)\b"
)
_GRID = re.compile(r'\s*File type = "ooTextFile"')
_GRID_FIELD = re.compile(
    r'^[ \t]*(?P<key>name|xmin|text) = (?:"(?P<text>(?:[^"]|"")*)"|(?P<number>\d[\d.]{0,20}))\s*$', re.MULTILINE
)


_GRID_VALUE = re.compile(r'"(?:[^"]|"")*"|(?<!\S)-?\d[\d.]{0,20}(?!\S)')
_TIERS = ('"IntervalTier"', '"TextTier"')


@transcript_format(
    "timed XML",
    suffixes=(".eaf", ".srv1", ".srv2", ".srv3", ".trs"),
    remedy="give it '<transcript><text start=\"1.0\">words</text></transcript>'",
    shown_by=lambda text, suffix: bool(_START.match(text[:2000])),
)
def read_timed_xml(text: str) -> Reading:
    """`<text start>` in seconds, `<p t>` in milliseconds with words in `<s>`. The speaker is that of ELAN's tier, or of
    Transcriber's turn."""
    slots: dict[str, float] = {}
    names: dict[str, str] = {}
    found: list[Annotation] = []
    tiers: set[str] = set()
    owners: list[str] = []
    unnamed: set[str] = set()
    speaker, seconds, tier, parts = "", 0.0, "", set[str]()
    for tag, attributes, after in elements(text):
        words = " ".join(unescape(after).split())  # the text of captions is escaped twice
        if tag == "time_slot":
            slots[attributes.get("time_slot_id", "")] = _number(attributes.get("time_value", "")) / 1000
        elif tag == "tier":
            tier = attributes.get("tier_id", "")
            speaker = attributes.get("participant") or tier
            if attributes.get("parent_ref") in tiers | parts:
                parts.add(tier)
            elif not attributes.get("participant"):
                unnamed.add(tier)
        elif tag == "speaker":
            names[attributes.get("id", "")] = attributes.get("name", "")
        elif tag in ("turn", "sync"):
            if tag == "turn":
                speaker = ", ".join(names.get(each) or each for each in attributes.get("speaker", "").split())
            seconds = _number(attributes.get("starttime") or attributes.get("time", ""))
            found.append(Annotation(seconds, speaker, words))
        elif tag == "alignable_annotation":
            seconds = slots.get(attributes.get("time_slot_ref1", ""), seconds)
        elif tag == "annotation_value" and words and tier not in parts:  # else: the words of that tier, again
            tiers.add(tier)
            owners.append(tier)
            found.append(Annotation(seconds, speaker, words))
        elif tag == "text" and "start" in attributes:
            found.append(Annotation(_number(attributes["start"]), "", words))
        elif tag == "p" and "t" in attributes:
            found.append(Annotation(_number(attributes["t"]) / 1000, "", words))
        elif tag in ("s", "/s", "event", "who", "comment", "background") and found:
            found[-1] = found[-1]._replace(words=f"{found[-1].words} {words}".strip())
    if not owners:
        return _read(found)
    names = speakers_of_tiers(sorted(unnamed & set(owners)))
    found = [each._replace(speaker=names.get(tier, each.speaker)) for tier, each in zip(owners, found, strict=True)]
    found, skipped = without_codes(found, owners)
    reading = _read(found)
    return reading._replace(skipped=skipped + reading.skipped)


@transcript_format(
    "TextGrid",
    suffixes=(".textgrid",),
    remedy="save it in Praat as a text file",
    shown_by=lambda text, suffix: bool(_GRID.match(text[:200])),
)
def read_text_grid(text: str) -> Reading:
    """Each interval with words is a cue; its tier's name is the speaker. A tier with the words or the sounds of another one is
    skipped."""
    found = list(_long_grid(text)) or list(_short_grid(text))
    kept, skipped = spoken_tiers(found)
    reading = _read(kept)
    return reading._replace(skipped=skipped + reading.skipped)


def _long_grid(text: str) -> Iterator[Annotation]:
    tier, seconds = "", 0.0
    for field in _GRID_FIELD.finditer(text):
        written = (field["text"] or "").replace('""', '"')
        if field["key"] == "name":
            tier = written
        elif field["key"] == "xmin":
            seconds = _number(field["number"] or "")
        elif words := " ".join(written.split()):
            yield Annotation(seconds, tier, words)


def _short_grid(text: str) -> Iterator[Annotation]:
    """Praat's short text file has the values of the long one without their names."""
    values = [match.group() for match in _GRID_VALUE.finditer(text)]
    kind = tier = ""
    for place, value in enumerate(values):
        if value in _TIERS and not kind.startswith("name"):
            kind = f"name {value}"
        elif kind.startswith("name"):
            kind, tier = kind.removeprefix("name "), _unquoted(value)
        elif kind == _TIERS[0] and value[0] == '"' and (words := " ".join(_unquoted(value).split())):
            yield Annotation(_number(values[place - 2]), tier, words)


def _unquoted(value: str) -> str:
    return value[1:-1].replace('""', '"')


def _read(found: list[Annotation]) -> Reading:
    """Returns the turns in the order of time. Tiers of single words or codes are reported."""
    found = [each for each in sorted(found, key=lambda each: each.seconds) if each.words]
    names = {speaker: name_of(speaker) for speaker in {each.speaker for each in found}}
    cues = [
        Cue(clock_time(each.seconds), [f"<v {name}>{each.words}" if (name := names[each.speaker]) else each.words])
        for each in found
    ]
    reading = read_cues(cues)
    singles = sum(" " not in each.words for each in found)
    if len(found) > 1 and 2 * singles > len(found) and any(names.values()):
        return reading.doubted("most annotations have one word: a tier may have codes or words, not speech", 0.4)
    return reading


def _number(written: str) -> float:
    try:
        return min(float(written), 1e7)
    except ValueError:
        return 0.0
