"""Subtitles with markup: TTML (DFXP), SAMI and SubStation Alpha. Their cues are read as SRT cues are.

The markup is scanned for its tags, in linear time, so that entities and nesting cost nothing.
"""

from __future__ import annotations

import re
from collections import Counter

from midthought.memory.formats.captions import Cue, read_cues
from midthought.memory.formats.reading import Reading, Skipped, name_of
from midthought.memory.formats.registry import transcript_format
from midthought.memory.formats.scripts import is_role
from midthought.memory.markup import unescape
from midthought.memory.turns import clock_time

_MAX_TAGS = 500_000
_TAG = re.compile(r"<(?P<close>/?)(?:[A-Za-z0-9]{1,20}:)?(?P<name>[A-Za-z][A-Za-z0-9_]{0,40})\b(?P<rest>[^<>]*)>")
_ATTRIBUTE = re.compile(r"""(?:[A-Za-z]{1,20}:)?(\w{1,24})\s{0,5}=\s{0,5}["']?([^"'<>]*)["']?""")
_TICKS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)?")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SAMI_LANGUAGE = re.compile(r"\.(\w{1,40})\s{0,20}\{[^{}]{0,300}?\blang:\s{0,9}([\w-]{2,20})", re.IGNORECASE)
"""The class of a language, in the styles."""
_EVENT = re.compile(r"^\s*Dialogue:\s*(?P<fields>.*)$", re.MULTILINE)
_EVENT_COLUMNS = re.compile(r"^\s*Format:\s*(?P<names>.*Start.*Text.*)$", re.MULTILINE | re.IGNORECASE)
_USUAL_STYLE = re.compile(
    r"(?i)\d|default|main|alt|top|bottom|sign|note|title|ital|plain|box|outline|shadow|text|song|lyric|karaoke|romaji|kanji|"
    r"english|caption|sub|thought|flash|credit|style|dialog|narrat|overlap|^(?:op|ed|tl|ts)\b|font|left|right|cent|trans|bold"
)
"""Names of styles that say how, or what kind of words, are shown."""
_OVERRIDE = re.compile(r"\{[^{}]{0,99}\\p[1-9][^{}]{0,99}\}.*?(?:\{[^{}]{0,99}\\p0[^{}]{0,99}\}|$)|\{[^{}]*\}")
"""Effects, and shapes that are drawn between `{\\p1}` and `{\\p0}`."""


@transcript_format(
    "TTML",
    suffixes=(".ttml", ".dfxp"),
    remedy="give it '<p begin=\"0:00:01\">text</p>'",
    shown_by=lambda text, suffix: bool(re.match(r"\s*(?:<\?xml[^<>]*>\s*)?<(?:\w{1,10}:)?tt[\s>]", text[:2000])),
)
def read_ttml(text: str) -> Reading:
    """Each `<p>` is a cue; `ttm:agent` is the speaker, by its `<ttm:name>` if it has one."""
    names, agent = _agents(text), ""
    cues: list[Cue] = []
    for tag, attributes, words in elements(text):
        if tag == "p":
            agent = names.get(attributes.get("agent", ""), attributes.get("agent", ""))
            cues.append(Cue(_seconds(attributes.get("begin", "")), [f"<v {agent}>{words}" if agent else words]))
        elif tag == "br" and cues:
            cues[-1].lines.append(words)
        elif tag in ("/span", "span") and cues:
            cues[-1].lines[-1] += f" {words}"
    cues = [Cue(cue.time, [words for line in cue.lines if (words := " ".join(line.split()))]) for cue in cues]
    return read_cues(cues)


@transcript_format(
    "SAMI",
    suffixes=(".smi", ".sami"),
    remedy="give it '<SYNC Start=1000><P>text'",
    shown_by=lambda text, suffix: text[:200].lstrip().lower().startswith("<sami"),
)
def read_sami(text: str) -> Reading:
    """Each `<SYNC>` starts a cue. Of several languages, the one with the most words is read."""
    languages = {match[1].lower(): match[2].lower() for match in _SAMI_LANGUAGE.finditer(text)}
    cues: dict[str, list[Cue]] = {}
    time, language = None, ""
    for tag, attributes, words in elements(text[max(0, text.lower().find("<body")) :]):
        if tag == "sync":
            start = attributes.get("start", "")
            time, language = clock_time(int(start) / 1000) if start.isdigit() else None, ""
        elif tag == "p":
            language = languages.get(attributes.get("class", "").lower(), "")
        elif tag.startswith("/body") or not cues:
            continue
        own = cues.setdefault(language, [])
        if tag in ("sync", "p") or not own:
            own.append(Cue(time, [words]))
        elif tag == "br":
            own[-1].lines.append(words)
        else:
            own[-1].lines[-1] += f" {words}"
    found = {
        language: [Cue(cue.time, [said for line in cue.lines if (said := " ".join(line.split()))]) for cue in own]
        for language, own in cues.items()
    }
    read = max(found, key=lambda language: sum(len(line) for cue in found[language] for line in cue.lines), default="")
    others = tuple(
        Skipped(" ".join(line for cue in own for line in cue.lines), "another language")
        for language, own in found.items()
        if language != read and any(cue.lines for cue in own)
    )
    reading = read_cues(found.get(read, []))
    return reading._replace(skipped=reading.skipped + others)


@transcript_format(
    "SubStation Alpha",
    suffixes=(".ass", ".ssa"),
    remedy="give it lines 'Dialogue: 0,0:00:01.00,0:00:02.00,Default,Name,0,0,0,,text'",
    shown_by=lambda text, suffix: text[:200].lstrip().lower().startswith("[script info]"),
)
def read_substation(text: str) -> Reading:
    """Each `Dialogue:` line is a cue; the field `Name` (or `Actor`), if it has a value, or a style such as `Speaker01` is the
    speaker."""
    columns = (
        [name.strip().lower() for name in matched["names"].split(",")]
        if (matched := _EVENT_COLUMNS.search(text))
        else []
    )
    cues: list[Cue] = []
    events = [
        dict(zip(columns, event["fields"].split(",", len(columns) - 1), strict=False))
        for event in _EVENT.finditer(text)
    ]
    styles = {fields.get("style", "") for fields in events}
    key = "style" if all(map(is_role, styles)) else "name" if "name" in columns else "actor"
    for fields in events:
        words = _OVERRIDE.sub("", fields.get("text", "")).replace("\\N", " ").replace("\\n", " ").replace("\\h", " ")
        speaker = name_of(fields.get(key, ""))
        cues.append(Cue(clock_time(fields.get("start", "")), [f"<v {speaker}>{words}" if speaker else words]))
    reading = read_cues(cues)
    named = [style for fields in events if (style := fields.get("style", "")) and not _USUAL_STYLE.search(style)]
    names = Counter(named)
    has_names = key != "style" and not any(segment.speaker for segment in reading.segments)
    if has_names and len(names) > 1 and 2 * len(named) > len(events) and min(names.values()) > 1:
        shown = ", ".join(map(repr, sorted(names)[:3]))
        return reading.doubted(f"its styles may be the speakers: {shown}", 0.3)
    return reading


def elements(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Returns (tag, attributes, text after it) of every tag, in lower case, closing ones with `/`."""
    if (num_tags := text.count("<")) > _MAX_TAGS:
        raise ValueError(f"it has {num_tags:,} tags, more than {_MAX_TAGS:,}; split it")
    tags = list(_TAG.finditer(text))
    ends = [tag.start() for tag in tags[1:]] + [len(text)]
    return [
        (
            tag["close"] + tag["name"].lower(),
            {key.lower(): value for key, value in _ATTRIBUTE.findall(tag["rest"])},
            unescape(text[tag.end() : end]),
        )
        for tag, end in zip(tags, ends, strict=True)
    ]


def _agents(text: str) -> dict[str, str]:
    """Returns the names of TTML's agents, by id."""
    names: dict[str, str] = {}
    running = ""
    for tag, attributes, words in elements(text[: max(0, text.find("<body"))]):
        running = attributes.get("id", "") if tag == "agent" else running
        if tag == "name" and running and words.strip():
            names[running] = " ".join(words.split())
    return names


def _seconds(written: str) -> str | None:
    """Returns the clock time of `00:00:01.5`, `00:00:01:12` (frames), `1.5s`, or `1.5` as in Apple's transcripts of podcasts."""
    if match := _TICKS.fullmatch(written):
        return clock_time(float(match[1]) * _SECONDS[match[2] or "s"])
    return clock_time(":".join(written.split(":")[:3]))
