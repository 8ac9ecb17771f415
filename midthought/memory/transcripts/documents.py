"""The formats that a package reads: captions (VTT, SRT, SubStation Alpha), Word, PDF and HTML."""

from __future__ import annotations

import io
import logging
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from midthought.config.references import optional
from midthought.memory.transcripts.reading import Reading, Skipped, damage_refused
from midthought.memory.transcripts.text import BOLD, BOLD_STYLE, Line, Text, paragraphs, read_lines
from midthought.memory.turns import CLOCK, clock_time, unescape, without_unusable_characters

_MIN_REPEATED_PAGES = 3

_INLINE = re.compile(r"a|abbr|b|cite|code|em|font|i|kbd|label|mark|q|s|small|span|strong|sub|sup|time|u")
_FORMS = dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), "heading")
_FORMS |= dict.fromkeys(("head", "script", "style", "template", "nav", "footer", "aside", "button"), "no speech")
_FORMS |= {"b": "bold", "strong": "bold", "cite": "name", "time": "time"}


def is_html(text: str, suffix: str) -> bool:
    """Whether a text starts as HTML does; with its suffix, whether it has a tag."""
    start = r"\s*<(?:!doctype html|html|cite)\b" if suffix not in (".html", ".htm") else r"[^<]*<[/!a-zA-Z]"
    return bool(re.match(start, text, re.IGNORECASE))


def html_text(markup: str) -> Text:
    """Returns the lines of a page. A name in <cite> gets a colon, a time in <time> brackets, as in the podcast namespace."""
    with damage_refused("HTML"):
        tree = optional("selectolax.lexbor", "documents").LexborHTMLParser(markup)
    title = tree.css_first("title")
    lines: list[list[str]] = [[]]
    starts: list[Line] = [Line("")]
    blocks: dict[int, tuple[int, str]] = {0: (0, "")}  # by element: the block it is in, and how its words are written
    last = 0
    for node in tree.root.traverse(include_text=True):
        block, form = blocks.get(node.parent.mem_id if node.parent is not None else 0, (0, ""))
        if node.tag != "-text":
            form = form if form == "no speech" else _FORMS.get(node.tag, form)
            blocks[node.mem_id] = (block if _INLINE.fullmatch(node.tag or "") else node.mem_id), form
            if node.tag in ("br", "cite"):
                lines.append([])
                starts.append(Line("", starts=node.tag == "cite"))
        elif (
            form != "no speech"
            and (words := re.sub(r"\s+", " ", without_unusable_characters(node.text_content))).strip()
        ):
            if block != last:
                lines.append([])
                starts.append(Line("", is_heading=form == "heading"))
            lines[-1].append(_written(words, form))
            last = block
    texts = [" ".join("".join(line).replace(BOLD + BOLD, "").replace(f"{BOLD} {BOLD}", " ").split()) for line in lines]
    found = [line._replace(text=text) for line, text in zip(starts, texts, strict=True) if text]
    return Text(found, title=(" ".join(title.text().split()) or None) if title else None)


def _written(words: str, form: str) -> str:
    bare = words.strip()
    if form == "bold":
        return words.replace(bare, f"{BOLD}{bare}{BOLD}")
    if form == "name":
        return f"{bare.rstrip(':')}: "
    return f"({bare.strip('()[]')}) " if form == "time" else f"# {bare}" if form == "heading" else words


def word_text(content: bytes) -> Text:
    """Returns the lines of a .docx file; deleted text, comments, headers and footers are no speech. Raises ValueError if it is
    damaged."""
    with damage_refused("Word"), zipfile.ZipFile(io.BytesIO(content)) as archive:
        if "word/document.xml" not in archive.namelist():
            raise ValueError("it is a ZIP file but no Word file; unpack it, or export its words as text")
        page = optional("mammoth", "documents").convert_to_html(io.BytesIO(content)).value
    return html_text(without_unusable_characters(page))


def pdf_text(content: bytes) -> Text:
    """Returns the lines of the pages, without those that many pages have at their edges. Raises ValueError if it is damaged."""
    pages: list[list[str]] = []
    logger = logging.getLogger("pypdf")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it prints each damage
    try:
        with damage_refused("PDF"):
            reader = optional("pypdf", "documents").PdfReader(io.BytesIO(content))
            if reader.is_encrypted and not reader.decrypt(""):
                raise ValueError("it is encrypted; save it without a password")
            for page in reader.pages:
                text = without_unusable_characters(page.extract_text())
                pages.append([" ".join(line.split()) for line in text.strip().split("\n")])
            title = reader.metadata.title if reader.metadata else None
    finally:
        logger.setLevel(level)
    if not any(map(any, pages)):
        raise ValueError("no speaker turn found: it has no text, as a scan; run a text recognition on it")
    edges = _running_heads(pages)
    lines = [
        line for number, page in enumerate(pages) for place, line in enumerate(page) if (number, place) not in edges
    ]
    skipped = tuple(Skipped(line, "repeated on pages") for line in dict.fromkeys(edges.values()))
    title = " ".join(str(title).split())[:300] if title else None
    return Text(paragraphs("\n".join(lines)), title=title, skipped=skipped)


def _running_heads(pages: Sequence[list[str]]) -> dict[tuple[int, int], str]:
    """Returns, by page and place, the first and last lines that at least three and half of the pages have, but for numbers. A
    label, which ends with a colon, is none."""

    def masked(line: str) -> str:
        return re.sub(r"\d+", "0", line)

    found = {
        (number, place): page[place]
        for number, page in enumerate(pages)
        for place in (0, len(page) - 1)
        if page[place] and not page[place].endswith(":")
    }
    counts = Counter(masked(line) for line in found.values())
    least = max(_MIN_REPEATED_PAGES, len(pages) / 2)
    return {place: line for place, line in found.items() if counts[masked(line)] >= least}


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
