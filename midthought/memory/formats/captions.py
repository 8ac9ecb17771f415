"""Captions, SRT and VTT: timed cues; the speaker is `<v Name>` or `Name: text` and stays until another one is named."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import regex

from midthought.memory.formats.columns import are_labels
from midthought.memory.formats.layouts import speakers_of
from midthought.memory.formats.line_candidates import Layout, Row, share_in_order
from midthought.memory.formats.line_heads import Head, is_exclamation, name_alone
from midthought.memory.formats.plain_text import read_plain_text
from midthought.memory.formats.reading import Reading, Skipped, head_of, name_of
from midthought.memory.formats.registry import transcript_format
from midthought.memory.formats.scripts import ends_sentence, is_role, word_count
from midthought.memory.formats.speech_signs import with_lost_words
from midthought.memory.markup import unescape
from midthought.memory.turns import CLOCK, CLOCK_PATTERN, UNKNOWN_SPEAKER, Segment, clock_time

_CUE_TIME = re.compile(
    rf"^[^\S\n]{{0,9}}(?:{CLOCK_PATTERN}|(?P<seconds>\d{{1,6}}[.,]\d{{1,3}}))[^\S\n]{{0,9}}(?:-->[^\S\n]{{0,9}}|,(?=\d+:))"
    r"[\d:.,]{3,30}",
    re.MULTILINE,
)
"""A line that starts a cue."""

_DAMAGED_TIME = re.compile(
    rf"^[^\S\n]{{0,9}}({CLOCK})[^\S\n]{{0,9}}(?:[-–—=]{{1,3}}[^\S\n]{{0,3}}>?|>|→)[^\S\n]{{0,9}}(?:{CLOCK})?[^\S\n]{{0,9}}$",
    re.MULTILINE,
)
"""A line that starts a cue, with an arrow that was changed, such as `00:01.000 -- > 00:02.000`, and perhaps without the end."""

_SUFFIXES = (".srt", ".sbv", ".sub", ".vtt")
_REMEDY = "give it cues with '{} --> {}' and words"
_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s+(?P<name>[^<>]*)>")
_TAG = re.compile(r"</?(?:b|c|font|i|lang|rt|ruby|u)(?:[.\s][^<>]*)?>|</v>|<\d[\d:.]*>|\{\\[^{}]*\}", re.IGNORECASE)
_SETTINGS = re.compile(r"\s+(?:align|line|position|region|size|vertical|[A-Z]\d?):\S*")
_FILE_FIELD = re.compile(r"(Kind|Language|Title|Region):\s*(.*)|\[(?!\d)([A-Z][A-Z0-9 ]{1,20})\]([^\[\]]*|.*,\[.*)")
"""A field of VTT, or of SubViewer: `[TITLE]The bell`."""
_DASH = re.compile(r"^\s*(?P<change>>>+|[-–—])\s+")
_MIN_DASHES_SHARE = 0.1
_CUE_NUMBER = re.compile(r"^\d{1,9}[.)]?\s*|\s*\(\d{1,15}\)$")
_MIN_NAMED_CUES = 6
_QUOTED_NAME = re.compile(r'\d{1,9} "[^"]{1,80}" \(\d{1,15}\)')
"""The line before the times of a cue in exports of Webex."""
_BLANKS = " \t\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Blanks, and marks of the writing direction around a line."""
_OUTSIDE = "not part of a cue"
_MAX_NAME_WORDS = 2
"""Of the name of a cue, on the line before its times."""
_MAX_WORDS_OUTSIDE = 40
_MAX_SHARE_OUTSIDE = 0.05
_NOTES = ("NOTE", "STYLE", "REGION")
"""First words of the blocks of a VTT file that are no cues."""
_CREDIT = regex.compile(
    r"\W{0,3}(?i:(?:closed )?(?:transcri(?:bed|ption|pt)|subtitl(?:es|ed|ing)|caption(?:s|ed|ing)|untertitel|sous-titres|"
    r"subtítulos|legendas|sottotitoli)(?: (?:created|made|produced|provided))? (?:by|von|par|por|di)):?\s"
    r"(?i:the |der |la )?(?:\p{Lu}|https?:|\S+\.\p{Ll}{2}).{0,120}"
)
"""Who wrote the captions: a name, a capital or an address follows."""
_ADDRESS = re.compile(r"\w\.[a-z]{2}")
_MAX_CREDIT_WORDS = 6
"""More words with a period at their end are a sentence: `Transcription by RNA polymerase starts at the promoter.`"""
_MAX_CREDITS = 2
"""Number of first and of last cues that may be credits."""
_BREAK = re.compile(r"\[br\]|(?i:<br\s?/?>)")


class Cue(NamedTuple):
    """Timed lines of captions."""

    time: str | None
    lines: list[str]


def _has_cues(text: str, suffix: str) -> bool:
    return bool(_CUE_TIME.search(text if suffix in _SUFFIXES else head_of(text)))


@transcript_format(
    "VTT",
    suffixes=(".vtt",),
    remedy=_REMEDY.format("HH:MM:SS.mmm", "HH:MM:SS.mmm"),
    shown_by=lambda text, suffix: text.startswith("WEBVTT"),
)
@transcript_format(
    "SRT", suffixes=_SUFFIXES[:-1], remedy=_REMEDY.format("HH:MM:SS,mmm", "HH:MM:SS,mmm"), shown_by=_has_cues
)
def read_captions(text: str) -> Reading:
    """Ignores notes, styles, numbers and headers between cues. Lines repeated by roll-up captions are read once."""
    cues, lines = _cues(text)
    if not cues and (damaged := _DAMAGED_TIME.search(text)):
        reading = read_captions(_DAMAGED_TIME.sub(r"\1 --> \1", text))
        return reading.doubted(f"the times of its cues are damaged, such as {damaged[0].strip()!r}", 0.05)
    if not cues:
        numberless = (line for line in text.split("\n") if not _CUE_NUMBER.fullmatch(line))
        return read_plain_text("\n".join(numberless)).doubted(
            "no line has the times of a cue; it was read as text", 0.1
        )
    header, skipped = _outside(lines, text.startswith("WEBVTT"))
    title = next((value for key, value in header if key.lower() == "title"), None)
    reading = read_cues(cues)
    reading = with_lost_words(reading._replace(title=title, header=header, skipped=skipped + reading.skipped), text)
    left = [each.text for each in skipped if each.reason == _OUTSIDE and len(each.text.split()) > _MAX_NAME_WORDS]
    num_left = sum(map(word_count, left))
    if num_left > max(_MAX_WORDS_OUTSIDE, _MAX_SHARE_OUTSIDE * sum(word_count(each.text) for each in reading.segments)):
        return reading.doubted(f"{num_left} words are not part of a cue and were not read: {left[-1][:40]!r}", 0.3)
    return reading


def read_cues(cues: list[Cue]) -> Reading:
    """Returns the turns of cues: speakers as `<v Name>`, `Name:`, `[NAME]:` or on lines of their own. Credits are skipped."""
    cues, credits = _without_credits([cue for cue in _unrolled(cues) if any(cue.lines)])
    rows = _rows(cues)
    has_voices = any("<v" in row.text for row in rows)
    layout = Layout(confidence=0.95) if has_voices else _names_alone(cues, rows) or speakers_of(rows)
    segments: list[Segment] = []
    for place, row in enumerate(rows):
        time = cues[row.number].time if row.after_blank else None
        if head := layout.heads.get(place):
            segments.append(Segment(name_of(head.name or "") or None, unescape(head.rest), time))
            continue
        if row.mark and layout.heads:  # another speaker, who is not named
            segments.append(Segment(UNKNOWN_SPEAKER, unescape(row.text), time))
            continue
        voices = _VOICE.split(row.text)  # words before the first voice, then name and words alternately
        if voices[0].strip():
            segments.append(Segment(None, unescape(voices[0]), time))
        named = zip(voices[1::2], voices[2::2], strict=True)
        segments += [Segment(name_of(unescape(name)) or None, unescape(said), time) for name, said in named]
    _judge_times(layout, [cue.time for cue in cues if cue.time])
    return Reading(None, segments, (), credits, layout.confidence, tuple(layout.doubts))


def _without_credits(cues: list[Cue]) -> tuple[list[Cue], tuple[Skipped, ...]]:
    """Returns the cues without first and last ones such as `Subtitles by Ann Lee`, and these; all if nothing else is said."""
    edge = {*range(len(cues))[:_MAX_CREDITS], *range(len(cues))[-_MAX_CREDITS:]}
    found = {
        place: text
        for place in sorted(edge)
        if _CREDIT.fullmatch(text := " ".join(" ".join(cues[place].lines).split()))
        and (not ends_sentence(text) or len(text.split()) <= _MAX_CREDIT_WORDS or _ADDRESS.search(text))
    }
    if len(found) == len(cues):
        return cues, ()
    spoken = [cue for place, cue in enumerate(cues) if place not in found]
    return spoken, tuple(Skipped(text, "line of a service") for text in found.values())


def _rows(cues: Sequence[Cue]) -> list[Row]:
    """Returns the lines without the dash or the arrows of another speaker; arrows are their mark. A few dashes among many
    lines are parts of sentences."""
    rows: list[Row] = []
    lines = [(number, line, place == 0) for number, cue in enumerate(cues) for place, line in enumerate(cue.lines)]
    found = [_DASH.match(line) for _, line, _ in lines]
    num_dashes = sum(dash is not None and not dash["change"].startswith(">") for dash in found)
    for (number, line, is_first), dash in zip(lines, found, strict=True):
        is_arrow = dash is not None and dash["change"].startswith(">")
        is_change = dash is not None and (is_arrow or num_dashes >= _MIN_DASHES_SHARE * len(lines))
        rows.append(Row(number, line[dash.end() :] if dash and is_change else line, is_first, ">>" if is_arrow else ""))
    return rows


def _names_alone(cues: Sequence[Cue], rows: Sequence[Row]) -> Layout | None:
    """Returns the first lines of cues if nearly all are names on lines of their own, as in exports of meetings."""
    firsts = {place: row.text for place, row in enumerate(rows) if row.after_blank and len(cues[row.number].lines) > 1}
    counts = Counter(text for text in firsts.values() if _may_be_label(text))
    inner = {row.text for place, row in enumerate(rows) if place not in firsts}
    heads = {
        place: Head("name", name, None, "")
        for place, text in firsts.items()
        if (name := name_alone(text) or (text if counts[text] > 1 and text not in inner else None))
    }
    labels = {name_of(head.name or "") for head in heads.values()}
    are_few = len(labels) < len(heads) and len(labels) <= max(3, len(heads) / 3)
    is_layout = len(heads) >= 0.9 * len(cues) and (are_few or all(map(is_role, labels)))
    return Layout("name", heads, confidence=0.93) if is_layout else None


def _may_be_label(text: str) -> bool:
    """Whether a line may be a label of any shape, such as a telephone number."""
    return len(text.split()) <= _MAX_NAME_WORDS and not is_exclamation(text)


def _judge_times(layout: Layout, times: Sequence[str]) -> None:
    order = share_in_order(times)
    if order < 0.95:
        layout.doubt(f"{1 - order:.0%} of the times go back", min(0.4, 2 * (1 - order)))


def _cues(text: str) -> tuple[list[Cue], list[tuple[str, bool]]]:
    """Returns the cues, and the lines outside of them that are no numbers, with whether they are notes."""
    cues: list[Cue] = []
    outside: list[tuple[str, bool]] = []
    names: list[str] = []
    later: list[int] = []
    taken: set[int] = set()
    is_vtt = text.startswith("WEBVTT")
    inside = in_notes = False
    num_quoted = 0
    for before, line in itertools.pairwise(["", *text.split("\n")]):
        in_notes = is_vtt and bool(line) and (in_notes or line.split(" ")[0] in _NOTES)
        if start := _CUE_TIME.match(line):
            taken |= _continue(cues, outside, later, before)
            if inside and (number := cues[-1].lines) and number[-1] == str(len(cues) + 1):
                number.pop()  # number of a cue without a blank line before it
            after = _SETTINGS.sub("", line[start.end() :]).strip(_BLANKS)  # such as `[speaker_0]`, or a confidence
            said = [after] if any(map(str.isalpha, after)) else []
            cues.append(Cue(clock_time(start["time"] or start["seconds"].replace(",", ".")), said))
            names.append(_CUE_NUMBER.sub("", before).strip(' "') if before else "")
            num_quoted += bool(_QUOTED_NAME.fullmatch(before))
            inside = True
        elif not line or not (is_vtt or line.strip()):  # a line of blanks does not end a VTT cue
            inside = inside and bool(_CUE_TIME.match(before))  # words may follow a blank first line
        elif inside:
            cues[-1].lines.append(_cue_line(line))
        elif line.strip() and not line.strip().isdigit():
            later += () if is_vtt else (len(outside),)
            outside.append((line.strip(), in_notes))
    taken |= _continue(cues, outside, later, "")
    outside = [each for number, each in enumerate(outside) if number not in taken]
    are_quoted = bool(cues) and num_quoted == len(cues)
    if are_quoted or (len(cues) >= _MIN_NAMED_CUES and are_labels(names)):  # lines before the times
        cues = [Cue(cue.time, [f"<v {name}>{' '.join(cue.lines)}"]) for name, cue in zip(names, cues, strict=True)]
        outside = [
            (line, is_note) for line, is_note in outside if _CUE_NUMBER.sub("", line).strip(' "') not in set(names)
        ]
    return [Cue(cue.time, [line for line in cue.lines if line]) for cue in cues], outside


def _cue_line(line: str) -> str:
    """Returns a line of a cue without markup."""
    return _TAG.sub("", _BREAK.sub(" ", line)).strip(_BLANKS)


def _continue(cues: list[Cue], outside: Sequence[tuple[str, bool]], later: list[int], before: str) -> set[int]:
    """Adds the lines after a blank line within a cue to it, and returns their numbers among the lines outside of cues; `before`
    is the line above the next cue, which may be its name."""
    lines = [(number, outside[number][0]) for number in later]
    words = {number: _cue_line(line) for number, line in lines if line != before.strip()} if cues else {}
    if words:
        cues[-1].lines.extend(words.values())
    later.clear()
    return set(words)


def _outside(
    lines: Sequence[tuple[str, bool]], is_vtt: bool
) -> tuple[tuple[tuple[str, str], ...], tuple[Skipped, ...]]:
    """Returns the header's fields and the skipped blocks: notes, styles, names of cues."""
    fields: list[tuple[str, str]] = []
    skipped: list[Skipped] = []
    for number, (line, is_note) in enumerate(lines):
        if is_vtt and number == 0:
            if rest := line.removeprefix("WEBVTT").strip(" -"):
                fields.append(("", rest))
        elif (field := _FILE_FIELD.fullmatch(line)) and len(skipped) == 0:
            fields.append((field[1] or field[3], field[2] if field[1] else field[4]))
        else:
            skipped.append(Skipped(line, "note or style" if is_note else _OUTSIDE))
    return tuple(fields), tuple(skipped)


def _unrolled(cues: list[Cue]) -> list[Cue]:
    """Removes the repeated line from cues of roll-up captions, as YouTube writes them."""
    spoken = [cue for cue in cues if cue.lines]
    rolled = [bool(after.lines[0] == before.lines[-1]) for before, after in itertools.pairwise(spoken)]
    has_two = sum(len(cue.lines) > 1 for cue in spoken)
    if sum(rolled) * 2 <= len(rolled) or has_two * 4 < len(spoken):
        return cues
    return spoken[:1] + [
        Cue(cue.time, cue.lines[1:] if again else cue.lines) for cue, again in zip(spoken[1:], rolled, strict=True)
    ]
