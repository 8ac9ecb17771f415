"""HTML: `<cite>`, `<time>` and `<p>` of the podcast namespace; other pages line by line, as plain text."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace

from midthought.memory.formats.columns import are_labels
from midthought.memory.formats.doubts import LIKE_TURNS
from midthought.memory.formats.header_fields import header_of
from midthought.memory.formats.line_candidates import Row
from midthought.memory.formats.line_reading import read_rows, rows_of
from midthought.memory.formats.markdown import SPEAKER
from midthought.memory.formats.page_notices import without_notices
from midthought.memory.formats.reading import Reading, name_of
from midthought.memory.formats.registry import transcript_format
from midthought.memory.formats.scripts import word_count
from midthought.memory.markup import mark_times, unescape, without_comments
from midthought.memory.turns import CLOCK, TIME_MARK, Segment, clock_time, without_unusable_characters

_PAGE = "html|head|body|cite|time|p|div|section|article|main|table|ul|ol|dl|h[1-6]"
_START = re.compile(rf"\s*<(?:\?xml|!doctype html|{_PAGE}|akomantoso)\b", re.IGNORECASE)
_INNER_PAGE = re.compile(r"<(?:!doctype\s+html|html)\b", re.IGNORECASE)
"""The start of a page below the code of a template."""
_HEAD_LETTERS = 200
_XML = re.compile(rf"\s*(?:<[?!][^<>]*>\s*)*<(?!(?:{_PAGE})\b|[?!])[A-Za-z]", re.IGNORECASE)
"""The start of markup that is no page."""
_SUFFIXES = (".html", ".htm", ".xml")
_TAG = re.compile(r"<(/?)([a-zA-Z][\w:.-]{0,100})(?![\w:.-])[^<>]*>|<[!?][^<>]*>")
_UNSPOKEN = re.compile(r"<(script|style|svg|template|noscript)\b", re.IGNORECASE)
_BLOCK = re.compile(
    "address|article|aside|blockquote|br|dd|div|dl|dt|figure|footer|h[1-6]|header|hr|li|main|nav|ol|p|pre|section|summary|table|td|th|title|tr|ul"
)
_LABEL = re.compile(
    r"""<(?:(span|div|p|h[2-6]|strong|b|a)\b[^<>]{0,300}class=["'](?:[^"'<>]{0,200}speaker[^"'<>]{0,200}|(?:[^"'<>]{0,99}[\s_-])?(?:author|who|sender|username)(?:\s[^"'<>]{0,99})?)["'][^<>]{0,300}|speaker)>([^<>]{1,60})</(?:\1|speaker)>""",
    re.IGNORECASE,
)
"""An element whose class or name says that it names the speaker."""
_WHO = re.compile(
    r"""<(?:u|sp|turn|segment|utterance|annotationblock)\b[^<>]{0,300}\b(?:who|speaker)=["']#?([^"'<>]{1,60})["'][^<>]{0,300}>""",
    re.IGNORECASE,
)
"""An utterance in XML, whose attribute names the speaker."""
_SPEECH = re.compile(r"<speech\b[^<>]{0,300}>\s*<from>.*?</speech>", re.DOTALL)
_FROM = re.compile(r"<from>([^<>]{1,150})</from>")
"""A speech, and its speaker, in the records of parliaments in Akoma Ntoso."""
_SIMPLE = re.compile(r"<([a-zA-Z][a-zA-Z0-9]{0,9})(\b[^<>]{0,300})>([^<>]{1,60})</\1>(?:\s{0,3}[:：])?")
_CLASS = re.compile(r"""class=["']([^"'<>]{1,200})["']""")
_MIN_LABELS = 6
_MIN_MARKED = 3
_FEW_WORDS = 450
_MIN_LINES = 6
_LINES_PER_BLOCK = 20
_LABEL_ALONE = re.compile(r"<\w[^<>]{0,300}>\s{0,9}([^<>:：]{1,60})(?:[:：]\s{0,9}</|</\w{1,10}>\s{0,9}[:：])")
"""An element that has only a label, such as `<b>Ann Lee:</b>`."""
_MARKED = 0.93
"""Confidence of a page whose elements name the speakers."""
_CLOCK = re.compile(rf"[(\[]?(?:\d{{1,4}}[/.-]\d{{1,2}}[/.-]\d{{1,4}},?\s)?({CLOCK})[)\]]?")
"""A time alone, which may have a date."""
_MOST = 0.9
_HEADING = re.compile("h[1-6]|title|summary")
_TITLES = ("h1", "title")
_MAX_TAGS = 500_000
"""About one tag for every word of a day."""


def _is_page(text: str, suffix: str) -> bool:
    if suffix in _SUFFIXES[:2] and _INNER_PAGE.search(text[:2000]):
        return True
    text = without_comments(text) if text[:_HEAD_LETTERS].lstrip().startswith("<!--") else text
    if suffix == ".xml" and _XML.match(text):
        return True
    return bool(_START.match(text)) and (suffix in _SUFFIXES or not SPEAKER.search(text))


@transcript_format(
    "HTML",
    suffixes=_SUFFIXES,
    remedy="write each turn as '<cite>Name:</cite> <time>0:00</time> <p>text</p>'",
    shown_by=_is_page,
)
def read_html(text: str) -> Reading:
    """`<cite>` names the speaker, `<time>` the time of the next `<p>`. Pages without `<cite>` are read line by line. XML whose
    tags mark no speech is doubtful."""
    reading = _with_page_doubts(_read_page(text))
    is_known = not _XML.match(without_comments(text)) or _FROM.search(text) or "<cite" in text
    if is_known or len(_LABEL.findall(text)) + len(_WHO.findall(text)) > 1:
        return reading
    return reading.doubted("it may be no transcript: it is XML, and no tag of it is known to mark speech", 0.4)


def _with_page_doubts(reading: Reading) -> Reading:
    """Returns the reading with a doubt if it has few words, no times, and not two names: most such pages are no transcripts."""
    said = [segment for segment in reading.segments if segment.text.strip()]
    num_words = sum(word_count(segment.text) for segment in said)
    are_timed = any(segment.time or TIME_MARK in segment.text for segment in said)
    if are_timed or len({segment.speaker for segment in said}) > 1 or num_words >= _FEW_WORDS:
        return reading
    return reading.doubted(f"a page with {num_words} words, without times, of one speaker at most", 0.3)


def _read_page(text: str) -> Reading:
    if (num_tags := text.count("<")) > _MAX_TAGS:
        raise ValueError(f"it has {num_tags:,} tags, more than {_MAX_TAGS:,}; split it, or save its words as text")
    if speeches := _SPEECH.findall(text):
        text = _FROM.sub(r"<cite>\1</cite>", "".join(speeches))
    pieces = _pieces(_spoken(without_comments(text)))
    title = next(
        (said for wanted in _TITLES for tag, said in _elements(pieces, _TITLES) if tag == wanted and said), None
    )
    if any(tag == "cite" for _, tag, _ in pieces):
        segments = _cited(pieces)
        if 2 * sum(len(segment.text.split()) for segment in segments) >= sum(
            len(said.split()) for _, _, said in pieces
        ):
            return Reading(title, segments)
    written = _preformatted(pieces, reads_lines=_label_element(text) is None)
    if 2 * len(written.split()) > sum(len(said.split()) for _, _, said in pieces):
        reading = read_rows(rows_of(written), mark_times)
        return reading._replace(title=title or reading.title)
    text, aside = without_notices(_spoken(without_comments(text)))
    labelled, num_labels = _LABEL.subn(lambda match: _labelled(match[2]), text)
    labelled, num_utterances = _WHO.subn(lambda match: f"<p>{match[1]}:</p><p>", labelled)
    is_known = num_labels + num_utterances > 1 or any(tag == "cite" for _, tag, _ in pieces)
    reading = _read_lines(labelled)
    if not is_known and (key := _label_element(text)):
        other = _read_lines(
            _SIMPLE.sub(lambda match: _labelled(match[3]) if _element_of(match) == key else match[0], labelled)
        )
        reading = reading if _speakers(reading) == _speakers(other) else other
    marked = {name_of(unescape(match[2])) for match in _LABEL.finditer(text)} if num_labels >= _MIN_MARKED else set()
    if not {name_of(name) for name in marked} <= _speakers(reading) and (turns := _marked_turns(text)):
        return turns._replace(title=title or turns.title, skipped=tuple(aside))
    if len(marked) > 1:
        alone = {name_of(unescape(match[1])) for match in _LABEL_ALONE.finditer(text)}
        reading = _with_marked_speakers(reading, marked | alone)
    others = sum(segment.speaker is not None for segment in reading.segments) - num_labels - num_utterances
    if num_labels + num_utterances > 1 and others > 0:
        reading = reading.doubted(f"{others} names of speakers are marked in another way than the others", 0.3)
    return reading._replace(title=title or reading.title, skipped=(*aside, *reading.skipped))


def _marked_turns(text: str) -> Reading | None:
    """Returns the turns between the elements of one class that name speakers, if one of them recurs and words follow nearly all;
    times alone before a name or the words are the turn's."""
    found = list(_LABEL.finditer(text))
    names = [name_of(unescape(match[2])) for match in found]
    ends = [*(match.start() for match in found[1:]), len(text)]
    parts = [_texts(text[match.end() : end]) for match, end in zip(found, ends, strict=True)]
    num_classes = len({_element_of(match) for match in map(_SIMPLE.match, (each[0] for each in found)) if match})
    num_said = sum(any(not _CLOCK.fullmatch(line) for line in lines) for lines in parts)
    if num_classes != 1 or len(set(names)) == len(names) or num_said < _MOST * len(parts):
        return None
    top = _texts(text[: found[0].start()])
    times: list[str | None] = []
    for lines in (top, *parts):
        times.append(lines.pop() if len(lines) > 1 and _CLOCK.fullmatch(lines[-1]) else None)
    segments = []
    for name, lines, before in zip(names, parts, times, strict=False):
        time = lines.pop(0) if lines and _CLOCK.fullmatch(lines[0]) else before
        clock = _CLOCK.fullmatch(time or "")
        segments.append(Segment(name or None, "\n".join(lines), clock_time(clock[1]) if clock else None))
    header = header_of(top, str.strip)
    return Reading(header.title, segments, header.fields, confidence=_MARKED)


def _texts(page: str) -> list[str]:
    return [row.text for row in _rows(_pieces(_spoken(without_comments(page))))]


def _with_marked_speakers(reading: Reading, marked: set[str]) -> Reading:
    """Returns the reading of a page that marks its speakers: other labels that occur once are words, and lines that start like
    labels are no doubt."""
    counts = Counter(segment.speaker for segment in reading.segments)
    segments = [
        segment
        if segment.speaker in marked or segment.speaker is None or counts[segment.speaker] > 1 or number == 0
        else replace(segment, speaker=None, text=_with_label(segment.speaker, segment.text), begins_turn=False)
        for number, segment in enumerate(reading.segments)
    ]
    reading = reading._replace(segments=segments)
    doubts = tuple(doubt for doubt in reading.doubts if not doubt.startswith(LIKE_TURNS))
    if len(doubts) == len(reading.doubts) or {each.speaker for each in segments} - {None, *marked}:
        return reading
    return reading._replace(doubts=doubts, confidence=round(min(_MARKED, reading.confidence + 0.3), 3))


def _with_label(label: str, text: str) -> str:
    return f"{label}{': ' if label.isascii() else '：'}{text}"


def _read_lines(page: str) -> Reading:
    return read_rows(_rows(_pieces(_spoken(without_comments(page)))), mark_times)


def _speakers(reading: Reading) -> set[str]:
    return {segment.speaker for segment in reading.segments if segment.speaker}


def _labelled(name: str) -> str:
    return f"<p>{name.strip().rstrip(':')}:</p><p>" if name.strip() else ""


def _element_of(match: re.Match[str]) -> tuple[str, str]:
    """Returns the tag and the class of a simple element."""
    found = _CLASS.search(match[2])
    return match[1].lower(), found[1] if found else ""


def _label_element(text: str) -> tuple[str, str] | None:
    """Returns the tag and the class of the elements whose words recur and alternate as the labels of speakers do."""
    words: dict[tuple[str, str], list[str]] = defaultdict(list)
    for match in _SIMPLE.finditer(text):
        words[_element_of(match)].append(unescape(match[3]).strip(" :\n"))
    found = {key: said for key, said in words.items() if len(said) >= _MIN_LABELS and are_labels(said)}
    return max(found, key=lambda key: len(found[key]), default=None)


def _spoken(text: str) -> str:
    """Returns the page without scripts, styles and similar elements."""
    kept: list[str] = []
    lowered, start = text.lower(), 0
    for match in _UNSPOKEN.finditer(text):
        if match.start() < start:
            continue
        end = lowered.find(f"</{match[1].lower()}", match.end())
        kept.append(text[start : match.start()])
        if end < 0:
            return "".join(kept)
        start = end
    return "".join([*kept, text[start:]])


def _pieces(text: str) -> list[tuple[bool, str, str]]:
    """Returns (whether the tag closes, tag, text after it) of every tag; the text before the first has an empty tag."""
    pieces: list[tuple[bool, str, str]] = []
    closes, tag, start = False, "", 0
    for match in _TAG.finditer(text):
        pieces.append((closes, tag, _said(text[start : match.start()])))
        closes, tag, start = match[1] == "/", (match[2] or "").lower(), match.end()
    return [*pieces, (closes, tag, _said(text[start:]))]


def _said(text: str) -> str:
    return without_unusable_characters(unescape(text)) if text else ""


def _elements(pieces: list[tuple[bool, str, str]], wanted: tuple[str, ...]) -> list[tuple[str, str]]:
    """Returns (tag, words) of the elements with these tags, in order; words outside of them have an empty tag."""
    elements: list[tuple[str, list[str]]] = [("", [])]
    for closes, tag, said in pieces:
        if tag in wanted:
            elements.append(("" if closes else tag, []))
        elements[-1][1].append(said)
    return [(tag, " ".join(" ".join(said).split())) for tag, said in elements]


def _preformatted(pieces: list[tuple[bool, str, str]], *, reads_lines: bool) -> str:
    """Returns what is written in `<pre>`, in its lines; with `reads_lines`, all words of a page with lines and hardly any
    paragraphs."""
    depth, written = 0, []
    num_blocks = sum(bool(_BLOCK.fullmatch(tag)) and tag != "title" for _, tag, _ in pieces)
    is_html = any(tag == "html" for _, tag, _ in pieces)
    if (
        reads_lines
        and is_html
        and sum(said.count("\n") for _, _, said in pieces) > max(_MIN_LINES, _LINES_PER_BLOCK * num_blocks)
    ):
        return "".join(said for _, _, said in pieces)
    for closes, tag, said in pieces:
        depth += (1 - 2 * closes) * (tag == "pre")
        written.append(said if depth > 0 else "")
    return "".join(written)


def _cited(pieces: list[tuple[bool, str, str]]) -> list[Segment]:
    segments: list[Segment] = []
    name: str | None = None
    time: str | None = None
    for tag, said in _elements(pieces, ("cite", "time", "p")):
        if tag == "cite":
            name = name_of(said) or None
        elif tag == "time":
            time = clock_time(said.strip("()[] "))
        elif tag == "p" and said:
            segments.append(Segment(name, said, time))
            time = None
    return segments


def _rows(pieces: list[tuple[bool, str, str]]) -> list[Row]:
    """Returns the page's words, one line per block element; headings are marked."""
    lines: list[tuple[str, list[str]]] = [("", [])]
    heading = ""
    for closes, tag, said in pieces:
        if _HEADING.fullmatch(tag):
            heading = "" if closes else "#"
        if _BLOCK.fullmatch(tag):
            lines.append((heading, []))
        lines[-1][1].append(f" {said}" if tag in ("span", "time") else said)
    rows = [(mark, line) for mark, words in lines if (line := " ".join("".join(words).split()))]
    return [Row(number, line, number == 0, mark) for number, (mark, line) in enumerate(rows)]
