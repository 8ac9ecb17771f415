"""Captions, SRT and VTT: timed cues; the speaker is `<v Name>` or `Name: text` and stays until another one is named."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from midthought.memory.formats.reading import Reading, head_of, name_of, untimed_headers
from midthought.memory.formats.registry import transcript_format
from midthought.memory.markup import unescape
from midthought.memory.turns import CLOCK_PATTERN, Segment, clock_time

_CUE_TIME = re.compile(rf"^[^\S\n]{{0,9}}{CLOCK_PATTERN}[^\S\n]{{0,9}}-->[^\S\n]{{0,9}}[\d:.,]{{4,30}}", re.MULTILINE)
"""A line that starts a cue."""

_REMEDY = "give it cues with '{} --> {}' and words"
_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s+(?P<name>[^<>]*)>")
_TAG = re.compile(r"</?(?:b|c|font|i|lang|rt|ruby|u)(?:[.\s][^<>]*)?>|</v>|<\d[\d:.]*>", re.IGNORECASE)
_DASH = re.compile(r"^\s*(?:>>+|[-–—])\s+")


class _Cue(NamedTuple):
    time: str | None
    lines: list[str]


def _has_cues(text: str, suffix: str) -> bool:
    return bool(_CUE_TIME.search(text if suffix in (".srt", ".vtt") else head_of(text)))


@transcript_format(
    "VTT",
    suffixes=(".vtt",),
    remedy=_REMEDY.format("HH:MM:SS.mmm", "HH:MM:SS.mmm"),
    shown_by=lambda text, suffix: text.startswith("WEBVTT"),
)
@transcript_format("SRT", suffixes=(".srt",), remedy=_REMEDY.format("HH:MM:SS,mmm", "HH:MM:SS,mmm"), shown_by=_has_cues)
def read_captions(text: str) -> Reading:
    """Ignores notes, styles, numbers and headers between cues. Lines repeated by roll-up captions are read once."""
    cues = _unrolled(_cues(text))
    spoken = [" ".join(cue.lines) for cue in cues]
    segments: list[Segment] = []
    for cue, words, prefix in zip(cues, spoken, untimed_headers(spoken), strict=True):
        voices = _VOICE.split(words)  # words before the first voice, then name and words alternately
        named = [(unescape(name), said) for name, said in zip(voices[1::2], voices[2::2], strict=True)]
        if prefix and not named:
            named, voices[0] = [(prefix["name"], prefix["rest"] or "")], ""
        if voices[0].strip():
            segments.append(Segment(None, unescape(voices[0]), cue.time))
        segments += [Segment(name_of(name) or None, unescape(said), cue.time) for name, said in named]
    return Reading(None, segments)


def _cues(text: str) -> list[_Cue]:
    cues: list[_Cue] = []
    is_vtt = text.startswith("WEBVTT")
    inside = False
    for line in text.split("\n"):
        if start := _CUE_TIME.match(line):
            if inside and (number := cues[-1].lines) and number[-1] == str(len(cues) + 1):
                number.pop()  # number of a cue without a blank line before it
            cues.append(_Cue(clock_time(start["time"]), []))
            inside = True
        elif not line or not (is_vtt or line.strip()):  # a line of blanks does not end a VTT cue
            inside = False
        elif inside:
            cues[-1].lines.append(_TAG.sub("", _DASH.sub("", line)).strip())
    return [_Cue(cue.time, [line for line in cue.lines if line]) for cue in cues]


def _unrolled(cues: Sequence[_Cue]) -> Sequence[_Cue]:
    """Removes the repeated line from cues of roll-up captions, as YouTube writes them."""
    spoken = [cue for cue in cues if cue.lines]
    rolled = [bool(after.lines[0] == before.lines[-1]) for before, after in itertools.pairwise(spoken)]
    has_two = sum(len(cue.lines) > 1 for cue in spoken)
    if sum(rolled) * 2 <= len(rolled) or has_two * 4 < len(spoken):
        return cues
    return spoken[:1] + [
        _Cue(cue.time, cue.lines[1:] if again else cue.lines) for cue, again in zip(spoken[1:], rolled, strict=True)
    ]
