"""The lines of Word, PDF and HTML."""

from __future__ import annotations

import io
import logging
import re
import zipfile
from collections import Counter
from collections.abc import Sequence

from midthought.config.references import optional
from midthought.memory.transcripts.reading import Skipped, damage_refused
from midthought.memory.transcripts.text import BOLD, Line, Text, paragraphs
from midthought.memory.turns import without_unusable_characters

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
