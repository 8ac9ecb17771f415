"""The ways transcripts are written: Markdown, plain text, JSON, SRT and VTT. A reader turns text into title and turns.

Readers raise ValueError with the reason; they know no files (transcripts names the file).
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from midthought.memory.turns import CLOCK_PATTERN, Turn, TurnCollector, clock_time, mark_times, plain_words

Reading = tuple[str | None, list[Turn]]
"""The episode's title, None where the source has none, and its turns."""

_MARKDOWN_SPEAKER = re.compile(r"^\s{0,3}(\*\*|__)(?P<name>[^*\n]{1,100}?)(?:\s*:\s*\1|\1\s*:)(?P<rest>.*)$")
_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(?P<title>.*?)\s*#*\s*$")
_RULE = re.compile(r"^[\s\\]*(?:(?:\*[\s\\]*){3,}|(?:-\s*){3,}|(?:_\s*){3,}|=+\s*|(?:```|~~~).*)$")
_LINE_PREFIX = re.compile(r"^\s*(?:>\s?)*(?:[-*+]\s+)?")
_FRONT_MATTER = re.compile(r"\A---\n(?P<fields>.*?)\n---\n", re.DOTALL)
_FRONT_TITLE = re.compile(r"^(?:title|episode):\s*(?P<quote>[\"']?)(?P<title>.+?)(?P=quote)\s*$", re.MULTILINE)

_BRACKETED_TIME = rf"[(\[]{CLOCK_PATTERN}[)\]]"
_NAME_THEN_TIME = re.compile(rf"^(?P<name>[^():\[\]]{{1,80}}?)\s*{_BRACKETED_TIME}\s*(?:[:–—-]\s*|$)(?P<rest>.*)$")
_TIME_THEN_NAME = re.compile(rf"^{_BRACKETED_TIME}\s*(?P<name>[^():\[\]]{{1,80}}?):\s*(?P<rest>.*)$")
_NAME_ONLY = re.compile(r"^(?P<name>[^:]{1,60}?):(?:\s+(?P<rest>.*))?$")
_NAME_WORD = re.compile(r"[^\W\d_a-z][\w.'’\-]*,?|\d+|&|(?:de|da|del|der|den|di|du|la|le|van|von|bin|al|and|of|y|e)")
_SENTENCE_END = re.compile(r"(?:[.!?…:—–-][\"'”’)\]]*|[)\]])\s*$")

_CUE_TIME = re.compile(rf"^\s*{CLOCK_PATTERN}\s*-->\s*[\d:.,]+")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+(?P<name>[^>]*)>")
_CUE_TAG = re.compile(r"</?(?:b|c|font|i|lang|rt|ruby|u)(?:[.\s][^<>]*)?>|</v>|<\d[\d:.]*>", re.IGNORECASE)
_CUE_DASH = re.compile(r"^\s*(?:>>+|[-–—])\s+")


def read_markdown(text: str) -> Reading:
    """Turns `**Speaker:** text` that go on until the next speaker; an optional first heading is the title."""
    title = None
    front = _FRONT_MATTER.match(text)
    if front:
        found = _FRONT_TITLE.search(front["fields"])
        title = found["title"] if found else None
        text = text[front.end() :]
    collector = TurnCollector()
    lines: list[str] | None = None  # of the running turn; None before the first speaker
    for line in text.split("\n"):
        speaker = _MARKDOWN_SPEAKER.match(line)
        heading = _HEADING.match(line)
        if speaker:
            collector.say(plain_words("\n".join(lines or [])))
            collector.begin(plain_words(speaker["name"]))
            lines = [speaker["rest"]]
        elif heading:
            if title is None and lines is None:
                title = plain_words(heading["title"])
        elif lines is not None and not _RULE.match(line):
            lines.append(_LINE_PREFIX.sub("", line))
    collector.say(plain_words("\n".join(lines or [])))
    return title or None, collector.finish()


def read_plain_text(text: str) -> Reading:
    """Turns `Name (00:29):`, `Name (00:29) - text`, `[00:29] Name: text`, or `Name: text` where no line has a time."""
    lines = [line.strip() for line in text.split("\n")]
    headers: Sequence[re.Match[str] | None] = [
        _NAME_THEN_TIME.match(line) or _TIME_THEN_NAME.match(line) for line in lines
    ]
    if not any(headers):
        headers = _untimed_headers(lines)
    first = next((number for number, header in enumerate(headers) if header), len(lines))
    preamble = [line for line in lines[:first] if line]
    collector = TurnCollector()
    for line, header in zip(lines[first:], headers[first:], strict=True):
        if header:
            collector.begin(header["name"].strip(" -–—"))
            collector.say(mark_times(header["rest"] or ""), clock_time(header.groupdict().get("time")))
        else:
            collector.say(mark_times(line))
    title = preamble[0].lstrip("# ").removeprefix("Title:").strip() if len(preamble) == 1 else None
    return title or None, collector.finish()


def _untimed_headers(lines: Sequence[str]) -> list[re.Match[str] | None]:
    """Lines that begin with a speaker's name and a colon, told from sentences that hold a colon.

    A name's words begin with capitals, and it either comes more than once or stands where a sentence has ended.
    """
    candidates = [
        match if (match := _NAME_ONLY.match(line)) and looks_like_name(match["name"]) else None for line in lines
    ]
    counts = Counter(match["name"] for match in candidates if match)
    for number, match in enumerate(candidates):
        follows_sentence = number == 0 or not lines[number - 1] or _SENTENCE_END.search(lines[number - 1])
        if match and (
            (counts[match["name"]] < 2 and not follows_sentence) or (number == 0 and match["name"] == "Title")
        ):
            candidates[number] = None
    return candidates


def looks_like_name(text: str) -> bool:
    """True for one to six words that begin with capitals, particles such as `van` aside: `Mireille B. Reece, Psy.D`."""
    words = text.split()
    return 1 <= len(words) <= 6 and words[0][0].isupper() and all(_NAME_WORD.fullmatch(word) for word in words)


def read_captions(text: str) -> Reading:
    """SRT and VTT cues; the speaker stands as `<v Name>` or `Name: text` and speaks until another is named."""
    cues = list(_cues(text))
    prefixes = _untimed_headers([spoken for _, spoken in cues])
    collector = TurnCollector()
    speaker: str | None = None
    for (time, spoken), prefix in zip(cues, prefixes, strict=True):
        voices = _VOICE.split(spoken)  # words before the first voice, then name and words in turn
        named = list(zip(voices[1::2], voices[2::2], strict=True))
        if prefix and not named:
            named, voices[0] = [(prefix["name"], prefix["rest"] or "")], ""
        collector.say(html.unescape(voices[0]), time if voices[0].strip() else None)
        for name, words in named:
            name = " ".join(html.unescape(name).split())
            if name != speaker:
                collector.begin(name)
                speaker = name
            collector.say(html.unescape(words), time)
    return None, collector.finish()


def _cues(text: str) -> Iterator[tuple[str | None, str]]:
    """(time, words on one line) of every cue; notes, styles, numbers and headers stand outside of cues."""
    time: str | None = None
    lines: list[str] | None = None
    for line in [*text.split("\n"), ""]:
        start = _CUE_TIME.match(line)
        if start or not line.strip():
            if lines is not None:
                yield time, _CUE_TAG.sub("", " ".join(lines))
            lines = [] if start else None
            time = clock_time(start["time"]) if start else None
        elif lines is not None:
            lines.append(_CUE_DASH.sub("", line).strip())


def read_json(text: str) -> Reading:
    """`{speakers, episode, content: [{speaker, transcript, time}]}`, or `{segments: [...]}`.

    Segments are those of podcast apps (`speaker, startTime, body`), of Whisper (`start, text`, perhaps `speaker`), or
    of editors with times for each word (`speaker_id, wdlist: [{word, start}]`).
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON ({error.msg}, line {error.lineno} column {error.colno})") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if isinstance(document, dict):
        title = document.get("episode") or document.get("title")
        title = title if isinstance(title, str) else None
        for key, read_entries in (("content", _content_turns), ("segments", _segment_turns)):
            entries = document.get(key)
            if isinstance(entries, list):
                if not all(isinstance(entry, dict) for entry in entries):
                    raise ValueError(f"the entries of {key!r} are not all objects")
                return title, read_entries(entries)
    raise ValueError("the JSON has neither a 'content' nor a 'segments' list")


def _content_turns(entries: Sequence[dict[str, Any]]) -> list[Turn]:
    """One turn for each entry of the original transcript files."""
    collector = TurnCollector()
    for entry in entries:
        collector.begin(_string(entry, "speaker"))
        collector.say(mark_times(_string(entry, "transcript", "text")), clock_time(entry.get("time")))
    return collector.finish()


def _segment_turns(entries: Sequence[dict[str, Any]]) -> list[Turn]:
    """Segments of one speaker after the other form one turn; one that names no speaker goes on with the last."""
    collector = TurnCollector()
    current: str | None = None
    for entry in entries:
        name = _string(entry, "speaker", "speaker_name", "speaker_id")
        timed_words = [word for word in entry.get("wdlist") or [] if isinstance(word, dict)]
        if name and name != current:
            collector.begin(name)
            current = name
        words = _string(entry, "body", "text") or "".join(_string(word, "word") for word in timed_words)
        start = next((value for key in ("startTime", "start") if (value := entry.get(key)) is not None), None)
        if start is None and timed_words:
            start = timed_words[0].get("start")
        if words.strip():
            collector.say(mark_times(words), clock_time(start))
    return collector.finish()


def _string(entry: dict[str, Any], *keys: str) -> str:
    """The first of the keys that holds words, else an empty string."""
    return next((value for key in keys if isinstance(value := entry.get(key), str) and value.strip()), "")


READERS: dict[str, Callable[[str], Reading]] = {
    ".md": read_markdown,
    ".txt": read_plain_text,
    ".json": read_json,
    ".srt": read_captions,
    ".vtt": read_captions,
}
"""Reader by file suffix, in lower case."""
