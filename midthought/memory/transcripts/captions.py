"""Captions: VTT, SRT and SubStation Alpha. The speaker is `<v Name>`, the field `Name`, or in a text style, until another one is
named; `>>` without a name is another speaker."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from midthought.config.references import optional
from midthought.memory.markup import unescape
from midthought.memory.transcripts.reading import Reading, Skipped, damage_refused
from midthought.memory.transcripts.text import BOLD, BOLD_STYLE, Line, Text, read_lines
from midthought.memory.turns import CLOCK, clock_time

CUE_TIME = re.compile(rf"^[^\S\n]{{0,9}}{CLOCK}[^\S\n]{{0,9}}-->[^\S\n]{{0,9}}{CLOCK}", re.MULTILINE)
_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s+([^<>]*)>")
_TAG = re.compile(
    r"</?(?:b|c|font|i|lang|rt|ruby|u|v)(?:[.\s][^<>\n]{0,500})?>|<\d[\d:.]{3,15}>|\{\\[^{}\n]{0,500}\}", re.IGNORECASE
)
"""Tags of captions; `<laugh>` is a word."""
_NOTE = re.compile(r"^(?:WEBVTT|NOTE|STYLE|REGION)\b.*(?:\n.+)*", re.MULTILINE)
_ARROWS = re.compile(r"(?:^|(?<=\s))(?=>{2,})")
_SLASH = "\ue102"


class _Cue(NamedTuple):
    time: str | None
    lines: list[str]
    speaker: str = ""


def read_vtt(text: str) -> Reading:
    """Reads the cues of VTT; notes and styles are no speech. Raises ValueError if it is damaged or has none."""
    with damage_refused("VTT"):
        captions = list(optional("webvtt", "memory").from_string(text))
    cues = [_Cue(clock_time(each.start), each.raw_text.split("\n")) for each in captions]
    notes = tuple(Skipped(found[0], "note or style") for found in _NOTE.finditer(text) if found.start())
    return _read(cues, _NOTE.sub("", text))._replace(skipped=notes)


def read_srt(text: str) -> Reading:
    """Reads the cues of SRT. Raises ValueError if it is damaged or has none."""
    events = _events(text.replace("\\", _SLASH), "srt", keep_html_tags=True)  # the parser writes \N for ends of lines
    cues = [_Cue(clock_time(each.start / 1000), each.text.split("\\N")) for each in events]
    cues = [cue._replace(lines=[line.replace(_SLASH, "\\") for line in cue.lines]) for cue in cues]
    return _read(cues, text)


def read_ass(text: str) -> Reading:
    """Reads the dialogue of SubStation Alpha; comments and drawings are no speech. Raises ValueError if it has none."""
    events = _events(text, "ass")
    lines = [each for each in events if each.type == "Dialogue" and not each.is_drawing]
    cues = [_Cue(clock_time(each.start / 1000), each.plaintext.split("\n"), each.name) for each in lines]
    return _read(cues, "")._replace(title=events.info.get("Title"))


def _events(text: str, form: str, **options: bool) -> Any:
    with damage_refused(form.upper()), warnings.catch_warnings(action="ignore"):
        return optional("pysubs2", "memory").SSAFile.from_string(text, format_=form, **options)


def _read(cues: Sequence[_Cue], text: str) -> Reading:
    plain = [cue._replace(lines=[line for written in cue.lines for line in _plain(written, cue)]) for cue in cues]
    spoken = [cue for cue in plain if cue.lines]
    rolled = _unrolled(spoken)
    lines = [
        Line(line, starts=is_start, time=cue.time if is_start else None)
        for cue in rolled or spoken
        for number, line in enumerate(cue.lines)
        for is_start in [number == 0 or line.startswith((">>", BOLD))]
    ]
    if not lines:
        raise ValueError("no speaker turn found: it has no cue with words")
    reading = read_lines(Text(lines, lambda words: " ".join(words.split()), are_cues=True))
    pairs = pairwise([*text.split("\n"), ""])  # lines before the times of a cue are its name or number
    source = "\n".join(line for line, after in pairs if "-->" not in line and "-->" not in after and not rolled)
    style = "<v Name>text" if reading.style == BOLD_STYLE else reading.style
    return reading._replace(source=unescape(_TAG.sub("", _VOICE.sub(r"\1 ", source))), style=style)


def _plain(line: str, cue: _Cue) -> Iterator[str]:
    """Yields the words of each voice in a line, after its name in bold; `>>` starts a line of its own."""
    voices = [cue.speaker, *_VOICE.split(line)]
    for name, words in zip(voices[::2], voices[1::2], strict=True):
        said = " ".join(unescape(_TAG.sub("", words)).split())
        for number, part in enumerate(filter(None, map(str.strip, _ARROWS.split(said)))):
            named = " ".join(unescape(name).split()) if number == 0 else ""
            yield f"{BOLD}{named}:{BOLD} {part}" if named else part


def _unrolled(cues: Sequence[_Cue]) -> list[_Cue]:
    """Returns the cues of roll-up captions, as YouTube writes them, without repeated lines; none of other captions."""
    again = [after.lines[0] == before.lines[-1] for before, after in pairwise(cues)]
    if 2 * sum(again) <= len(again) or all(len(cue.lines) == 1 for cue in cues):
        return []
    pairs = zip(cues, [False, *again], strict=True)
    return [cue._replace(lines=cue.lines[is_again:]) for cue, is_again in pairs]
