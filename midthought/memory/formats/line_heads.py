"""The start of a line read in every way that it allows: a name, a time, both, in brackets, bold or alone on the line."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import regex

from midthought.memory.formats.scripts import folded, is_role, looks_like_name
from midthought.memory.turns import CLOCK, clock_time

_MAX_HEAD_LETTERS = 200
_MIN_CAPITALS = 5

_FRAMES = r"(?:[:;]\d\d(?!\d))?(?!:?\d)"
_DATE = r"(?P<date>\d{1,4}[./-]\d{1,2}(?:[./-]\d{1,4})?,?\s{1,3}|\d{4}年\d{1,2}月\d{1,2}日\s{0,3})?"
_HALF = r"(?:\s?(?P<half>[AaPp])\.?[Mm]\b\.?)?"
_CLOCK = rf"{_DATE}(?P<time>{CLOCK}){_FRAMES}{_HALF}"
_TO_END = rf"\s{{1,3}}{CLOCK}(?=\s{{0,9}}:?$)"
"""A second time at the end of a line, which is the end."""
_UNTIL = r"\s{0,9}(?:-{0,2}>|[-–—~→,]|to|bis|à)\s{0,9}"
_SPAN = rf"{_CLOCK}(?:{_UNTIL}{CLOCK}{_FRAMES}(?:\s?[AaPp]\.?[Mm]\b\.?)?|{_TO_END})?"
_NUMBERS = rf"(?P<seconds>\d{{1,9}}\.\d{{1,6}})s?{_UNTIL}\d{{1,9}}\.\d{{1,6}}s?"
_BRACKETED = rf"[(\[<]\s{{0,3}}(?:{_SPAN}|{_NUMBERS})\s{{0,3}}[)\]>]"
_TIME = rf"(?:{_BRACKETED}|{_SPAN})"
_NAME = r"(?P<name>[^\s:()\[\]|<>\\](?:[^:()\[\]|<>]|\((?:[^():\d][^():]{0,38})?\)){0,79}?)"
_TITLED_NAME = r"(?P<name>\p{Lu}[^:,.()\[\]|<>]{1,39}, [^:()\[\]|<>.!?]{20,120})"
"""A name and a long title, as in `Ann Lee, President and Chief Executive Officer, The Bell Works of Harbour`."""
_DIRECTION = r"(?:\s(?P<direction>\([^()]{41,150}\)))?"
"""What somebody does before the words."""
_IN_BRACKETS = r"\[(?P<name>[^:\[\]]{1,80})\]"
_IN_ANGLES = r"<(?!/|(?:a|b|br|em|i|li|p|q|s|u)\s*>)[ @+%]?(?P<name>[^\s<>=/][^<>=/]{0,39}?)\\?>"
_REST = r"(?P<rest>.*)$"
_BREAK = r"(?:\s+|$)"

TITLES = r"(?:Mr|Ms|Mrs|M|MM|Mme|Mlle|Dr|Prof|Sr|Sra|Sen|Rep|Hon|St|On|Gen|Col|Lt|Capt|Rev|Gov|Hr|Fr|Frau|Herr)"
_TITLED = regex.compile(rf"{TITLES}\.(?:\s[^\s.,!?]{{1,20}}){{1,4}}")
"""A label with a title, such as `M. le ministre`."""
_QUESTION = "question|answer|pergunta|resposta|pregunta|respuesta|frage|antwort|domanda|risposta"
_NUMBERED = rf"(?P<name>(?i:{_QUESTION})|[QA])\s?\d{{1,3}}\s?\)|(?P<name>(?i:{_QUESTION}))\s\d{{1,3}}\s[–—-](?=\s)"
_LABEL = (
    r"(?:[\[(<](?P<name>(?i:speaker|spk|spkr)_\d{1,3})[\])>]|(?P<name>(?i:speaker|spk|spkr)_\d{1,3}|UNKNOWN(?=\s{1,3}[-–—|]\s)))"
    r"(?:\s{0,3}[-–—|>:]{1,2}\s{0,3}|\s{1,9}|$)"
)
"""A label of a diarization program, such as `SPEAKER_00`, and what may stand after it."""
_SEPARATED = r"\s{0,9}[-–—|•,]?\s{0,9}"
_COLUMN = r"(?:[ ]{0,9}[|\t]\s{0,9})"

_STYLES = {
    "name (time)": rf"{_NAME}:?\s{{0,9}}[,–—-]?\s{{0,3}}{_BRACKETED}\s{{0,9}}[:–—-]?\s{{0,9}}{_REST}",
    "name time": rf"{_NAME}(?:\s{{0,9}}[,|–—•-]\s{{0,9}}|:\s{{1,9}}|\s{{1,9}}){_SPAN}\s{{0,9}}:?$(?P<rest>)",
    "name time text": rf"{_NAME}(?:\s{{0,9}}[|]\s{{0,9}}|:?\s{{1,9}}){_SPAN}\s{{0,9}}[|:–—-]?\s{_REST}",
    "time name:": rf"{_TIME}{_SEPARATED}(?:{_NAME}|{_IN_BRACKETS})\s{{0,3}}(?::|>>?){_BREAK}{_REST}",
    "time [name]": rf"{_TIME}\s{{0,9}}[-–—|]?\s{{0,9}}{_IN_BRACKETS}{_BREAK}{_REST}",
    "time name": rf"{_TIME}\s{{0,9}}[-–—|•]?\s{{0,9}}{_NAME}\s{{0,9}}$(?P<rest>)",
    "time | name |": rf"{_TIME}{_COLUMN}{_NAME}{_COLUMN}{_REST}",
    "time <v name>": rf"(?:{_TIME}\s{{0,9}})?<v(?:\.[^\s<>]{{0,40}})?\s{{1,9}}(?P<name>[^<>]{{1,80}})>\s{{0,9}}{_REST}",
    "[name] time": rf"{_IN_BRACKETS}:?\s{{0,9}}[-–—|]?\s{{0,9}}{_TIME}\s{{0,9}}(?:[:–—|-]{_BREAK}|$|\s){_REST}",
    "[name]:": rf"{_IN_BRACKETS}\s{{0,3}}:{_BREAK}{_REST}",
    "[name]": rf"{_IN_BRACKETS}{_BREAK}{_REST}",
    "<name>": rf"(?:{_TIME}\s{{0,9}})?\\?{_IN_ANGLES}{_BREAK}{_REST}",
    "name\t": rf"{_NAME}[ ]{{0,3}}\t\s{{0,9}}{_REST}",
    "time speaker: name": rf"{_TIME}{_SEPARATED}(?i:speaker)\s{{0,3}}:\s{{1,9}}{_NAME}$(?P<rest>)",
    "speaker: name": rf"(?i:speaker)\s{{0,3}}:\s{{1,9}}{_NAME}$(?P<rest>)",
    "time label": rf"{_TIME}{_SEPARATED}{_LABEL}{_REST}",
    "label": rf"{_LABEL}{_REST}",
    "name —": rf"{_NAME}\s{{1,3}}(?:[–—―]|--?)\s{{1,3}}{_REST}",
    "name:": rf"(?:(?P<name>[QA])\.(?=\s+\S)|{_NUMBERED}|{_NAME}{_DIRECTION}\s{{0,3}}::?|{_TITLED_NAME}:)"
    rf"(?:{_BREAK}|(?<=\))){_REST}",
}
_PATTERNS = {style: regex.compile(pattern, regex.DOTALL) for style, pattern in _STYLES.items()}
_SIGNED = regex.compile(r"[:(\[<|\t]|\d\s?\)|_\d|\s[–—―-]|(?<!\S)[QA]\.\s")
"""A sign of a style. Most lines of speech have none."""
_TIME_SIGN = regex.compile(r"\d:\d|[(\[<]\s{0,3}\d{1,9}\.\d")
_NEEDED = {
    "time <v name>": "<",
    "<name>": "<",
    "[name] time": "[",
    "time [name]": "[",
    "[name]:": "[",
    "[name]": "[",
    "name\t": "\t",
    "name —": "–—―-",
    "time | name |": "|\t",
}
"""Signs, one of which a style needs."""
_UNTIMED = ("time <v name>",)
"""Styles with a time that may be missing."""
_TIME_FIRST = regex.compile(rf"(?:{_TIME}(?:\s{{0,9}}[:–—·•-])?{_BREAK}|{_BRACKETED}){_REST}", regex.DOTALL)
_ALONE = regex.compile(r"\[?(?P<name>[^:\[\]|<>]{1,80}?)\]?$")
_WITH_TITLE = regex.compile(r"(?P<name>[^:\[\]|<>]{2,50}?)\s?--\s?[^.:!?]{2,90}")
"""A name and a title, as in `Ann Lee--Chief Executive Officer`."""
_DESCRIBED = regex.compile(
    r"(?P<name>[^()]{3,60}?)(?: \([^()]{1,60}\)){2,3}|"
    r"The (?:[\p{Lu}][^\s().]{1,30},? |(?:and|for|of|the) ){2,20}\((?P<name>[^()]{3,40})\)"
)
"""A member of a parliament with a place and a party, or an office with the name of who holds it."""
_WIDE_COLON = regex.compile(rf"{_NAME}\s{{0,3}}:{_REST}", regex.DOTALL)
_MARK = regex.compile(r"(?:>>+|[-–—•])\s{0,3}(?=\S)|:(?=[^\s:])")

_CHAT = regex.compile(r"^From\s{1,3}(.{1,60}?)(?:\s{1,3}to\s{1,3}\S.{0,40})?$")
"""How chats write who says something to whom."""

TIMED_STYLES = frozenset(style for style in _STYLES if "time" in style)
_RARE_SIGN = regex.compile(f"[{regex.escape(''.join(_NEEDED.values()))}]")


class Head(NamedTuple):
    """One reading of a line's start."""

    style: str
    name: str | None
    """As written; None for a time alone."""
    time: str | None
    """`HH:MM:SS`."""
    rest: str
    """The line after it."""
    is_dated: bool = False
    """Whether the time is one of the day, after a date."""
    is_number: bool = False
    """Whether the time is a number without a unit, taken for seconds."""


def heads_of(line: str, *, any_name: bool = False) -> list[Head]:
    """Returns every reading of the line's start as name, or name and time. Takes time linear in the line's length.

    With `any_name`, a name may have any shape.
    """
    plain = folded(line[:_MAX_HEAD_LETTERS])
    if not _SIGNED.search(plain):
        return []
    offset = len(plain) - len(plain.lstrip())
    if mark := _MARK.match(plain, offset):
        offset = mark.end()
    has_time, signs = _TIME_SIGN.search(plain) is not None, frozenset(_RARE_SIGN.findall(plain))
    found = [
        _head(style, match, line)
        for style, pattern in _possible(has_time, signs)
        if (match := pattern.match(plain, offset)) and (any_name or is_label(match["name"]))
    ]
    if not found and (match := _WIDE_COLON.match(plain, offset)) and (any_name or is_label(match["name"])):
        colon = match.start("rest") - 1
        if (
            line[colon] != ":" or not match["rest"][:1].isascii()
        ):  # no blank after a wide colon, or before another script
            found.append(_head("name:", match, line))
    return found


@cache
def _possible(has_time: bool, signs: frozenset[str]) -> list[tuple[str, regex.Pattern[str]]]:
    """Returns the styles and patterns of lines with these signs, with a time or without."""
    return [
        (style, pattern)
        for style, pattern in _PATTERNS.items()
        if not (style in _NEEDED and signs.isdisjoint(_NEEDED[style]))
        and (has_time or style not in TIMED_STYLES or style in _UNTIMED)
    ]


def time_head(line: str) -> Head | None:
    """Returns the line's start as a time without a name."""
    if line[:1].isalpha():
        return None
    plain = folded(line[:_MAX_HEAD_LETTERS])
    match = _TIME_FIRST.match(plain, len(plain) - len(plain.lstrip()))
    return Head("time", None, _time_of(match), line[match.start("rest") :], bool(match["date"])) if match else None


def name_alone(line: str, *, any_name: bool = False) -> str | None:
    """Returns the line if it may be a name and nothing else; with `any_name`, also a short one without a name's shape."""
    if any_name and len(line) <= 40 and not is_exclamation(line) and ":" not in line:
        return line
    if is_role(bare := line.strip("-=*_#~ ")):
        return bare  # `--- Speaker 1 ---`
    if line.isupper() and line.endswith(".") and len(line) > _MIN_CAPITALS:
        line = line[:-1]  # `FAUST.`
    if described_name(line):
        return line
    titled = _WITH_TITLE.fullmatch(line) if "--" in line else None
    match = titled or (_ALONE.match(folded(line).strip()) if len(line) <= 90 else None)
    return match["name"] if match and is_label(match["name"]) else None


def described_name(line: str) -> str | None:
    """Returns the name in a label such as `Ann Lee (Harbour) (Ind)` or `The Secretary of State for Tides (Ann Lee)`."""
    match = _DESCRIBED.fullmatch(line) if line.endswith(")") else None
    return match["name"] if match and is_label(match["name"]) else None


def is_label(name: str) -> bool:
    """Whether the text has the shape of a name or of a label such as `speaker 1`."""
    name = name.strip(" \t*_-–—")
    if name[:1] == "(" or (name[:1] in ('"', "“", "«") and name[-1] not in ('"', "”", "»")):
        return False  # a sound, the start of a quotation
    if _TITLED.fullmatch(name) or _has_long_title(name):
        return True
    return bool(name) and (looks_like_name(name) or is_role(name)) and not is_exclamation(name)


def _has_long_title(name: str) -> bool:
    """Whether the text is a name, a comma and more words in capitals than a name has."""
    before, comma, title = name.partition(", ")
    words = [word for word in title.split() if len(word) > 3]
    return bool(comma) and len(words) > 3 and looks_like_name(before) and all(word[0].isupper() for word in words)


def is_exclamation(name: str) -> bool:
    """Whether the text ends as a sentence, not as a name with an abbreviation: `Yeah.`, not `Martin Luther King Jr.`"""
    last = name.split()[-1]
    if last.endswith("."):
        return len(last) > 5 or (" " not in name and len(last) > 2)
    return last[-1] in ",;!?…。！？؟"


def _head(style: str, match: regex.Match[str], line: str) -> Head:
    time = _time_of(match)
    name = line[match.start("name") : match.end("name")]
    found = match.groupdict()
    is_dated, is_number = bool(found.get("date")), bool(found.get("seconds"))
    name = _CHAT.sub(r"\1", name) if time else name
    rest = line[match.start("rest") :]
    if found.get("direction"):
        rest = f"{line[slice(*match.span('direction'))]} {rest}".rstrip()
    return Head(style, name, time, rest, is_dated, is_number)


def _time_of(match: regex.Match[str]) -> str | None:
    """Returns the time of a match; `10:02 PM` is a time of the day, and numbers are taken for seconds."""
    found = match.groupdict()
    if found.get("seconds"):
        return clock_time(found["seconds"])
    clock = found.get("time")
    if not clock or not found.get("half"):
        return clock_time(clock)
    hours, _, minutes = clock.partition(":")
    hours = str(int(hours) % 12 + 12 * (found["half"] in "Pp"))
    return clock_time(f"{hours}:{minutes}" if ":" in minutes else f"{hours}:{minutes}:00")
