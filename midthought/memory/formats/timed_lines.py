"""Lines with times of their own: subtitles by frame (MicroDVD), lyrics (LRC). RTTM, which has no words, is refused."""

from __future__ import annotations

import re

from midthought.memory.formats.captions import Cue, read_cues
from midthought.memory.formats.reading import Reading
from midthought.memory.formats.registry import transcript_format
from midthought.memory.formats.speech_signs import with_lost_words
from midthought.memory.turns import CLOCK, clock_time

_FRAMES = re.compile(r"^\{(?P<start>\d{1,9})\}\{\d{0,9}\}(?P<said>.*)$", re.MULTILINE)
_FRAMES_FIRST = re.compile(r"(?:\s*\{\d{1,9}\}\{\d{0,9}\}.*\n){2}")
_RATE = re.compile(r"\s*([1-9]\d(?:[.,]\d{1,3})?)\s*")
_EFFECT = re.compile(r"\{[A-Za-z]:[^{}]{0,40}\}")
_LYRICS = re.compile(rf"^(?P<times>(?:\[{CLOCK}\][ \t]?)+)(?P<said>.*)$", re.MULTILINE)
_LYRICS_FIELD = re.compile(r"^\[([a-z#]{1,12}):(.*)\]$", re.MULTILINE)
_WORD_TIME = re.compile(rf"<{CLOCK}>")
_CLOCK = re.compile(CLOCK)
_SPEAKER_TIMES = re.compile(r"\s*(?:;;.*\n\s*)*SPEAKER\s+\S+\s+\S+\s+[\d.]+\s+[\d.]+\s+<NA>\s+<NA>\s+\S+\s+<NA>")


@transcript_format(
    "MicroDVD",
    suffixes=(),
    remedy="give it lines '{start frame}{end frame}text'",
    shown_by=lambda text, suffix: bool(_FRAMES_FIRST.match(text[:2000])),
)
def read_frames(text: str) -> Reading:
    """Each line is a cue from one frame to another; the times are known if the first line has the frames per second."""
    cues = list(_FRAMES.finditer(text))
    rate = _RATE.fullmatch(cues[0]["said"])
    seconds = 1 / float(rate[1].replace(",", ".")) if rate else None
    reading = read_cues(
        [
            Cue(clock_time(int(cue["start"]) * seconds) if seconds else None, _EFFECT.sub("", cue["said"]).split("|"))
            for cue in cues[bool(rate) :]
        ]
    )
    return with_lost_words(reading, _EFFECT.sub("", text))


@transcript_format("LRC", suffixes=(".lrc",), remedy="give it lines '[mm:ss.xx]text'")
def read_lyrics(text: str) -> Reading:
    """Each line is a cue; one with several times is said at each of them."""
    fields = tuple((field[1], field[2].strip()) for field in _LYRICS_FIELD.finditer(text))
    cues = [
        Cue(clock_time(time), [_WORD_TIME.sub("", line["said"]).strip()])
        for line in _LYRICS.finditer(text)
        for time in _CLOCK.findall(line["times"])
    ]
    reading = read_cues(sorted(cues, key=lambda cue: cue.time or ""))
    return with_lost_words(reading._replace(title=dict(fields).get("ti"), header=fields), text)


@transcript_format(
    "RTTM",
    suffixes=(),
    remedy="give the transcript itself, such as the recognizer's SRT or JSON",
    shown_by=lambda text, suffix: bool(_SPEAKER_TIMES.match(text[:2000])),
)
def refuse_speaker_times(text: str) -> Reading:
    """Raises ValueError: who speaks when, without words."""
    raise ValueError("it says who speaks when (RTTM), but has no words")
