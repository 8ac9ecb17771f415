"""What a page has around its content: asides, notices, hidden words, and lines that are only links."""

from __future__ import annotations

import re
from collections import Counter

from midthought.memory.formats.line_heads import name_alone
from midthought.memory.formats.reading import Skipped
from midthought.memory.markup import unescape
from midthought.memory.turns import CLOCK

_NOT_CONTENT = "not the content of the page"
_ASIDE = re.compile(
    r"""(?i)<(?:nav|footer|aside|teiheader|spangrp|note|header|(?P<box>div|section|p)(?=[^<>]{0,300}\s(?:role=["']?(?:note|navigation|banner|contentinfo|complementary)\b|(?:class|id)=["'](?:[^"'<>]{0,99}[\s_-])?(?:cookies?|copyright|breadcrumbs?)[\s"'_-])))\b[^<>]{0,500}>"""
)
"""The start of an element of a page that is not its content."""
_BOX = re.compile(r"(?i)<(/?)(nav|footer|aside|teiheader|spangrp|note|header|div|section|p)\b[^<>]*>")
_MAX_ASIDE_LETTERS = 20_000
_MAX_HEADER_LETTERS = 5000
_HIDDEN = re.compile(
    r"""<(span|div|p|i|b|em|small|button|img|figure)\b[^<>]{0,300}(?:\shidden(?=[\s>=])|aria-hidden=["']true["']|display:\s?none|class=["'](?:[^"'<>]{0,99}[\s_-])?avatar(?:[\s_-][^"'<>]{0,99})?["'])[^<>]{0,300}>([^<>]{0,60}(?<![:：]))</\1>|"""
    r"<(a|button)\b[^<>]{0,500}>[^<>\w]{1,9}</\3>",
    re.IGNORECASE,
)
"""Short text that a page does not show as text, initials on a picture, and links that are signs, such as `▶`."""
_A = r"<a\b[^<>]{0,500}>[^<>]{1,80}</a>"
_EDGE = r"(?:/?(?:address|article|body|br|dd|div|dl|dt|footer|h[1-6]|header|hr|li|main|nav|ol|p|section|td|tr|ul))\b"
_LINKS = re.compile(
    rf"(<{_EDGE}[^<>]{{0,300}}>\s{{0,99}})({_A}(?:[\s|·•/]{{0,99}}{_A}){{0,30}})(?=\s{{0,99}}<{_EDGE})", re.IGNORECASE
)
"""A line that has only links."""
_LINK = re.compile(r"""<a\b(?:[^<>]{0,500}?\shref=["']?([^"'<>\s]*))?[^<>]*>([^<>]*)</a>""", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")
_TIME = re.compile(rf"[(\[]?{CLOCK}[)\]]?")
_MAX_LINK_WORDS = 5
_MAX_SHARE = 0.2
"""Of a page's words, in lines that have only links; more are words that are said, each line a link to its time."""
_MIN_ROW = 3
"""Number of links in a row that are no names."""


def without_notices(page: str) -> tuple[str, list[Skipped]]:
    """Returns the page without what is not its content, and that."""
    skipped: list[Skipped] = []

    def hide(match: re.Match[str]) -> str:
        if said := _words(match[2] or ""):
            skipped.append(Skipped(said, "hidden on the page"))
        return " "

    kept: list[str] = []
    last = 0
    for start, end in _asides(page):
        if said := _words(page[start:end]):
            skipped.append(Skipped(said, _NOT_CONTENT))
        kept += [page[last:start], " "]
        last = end
    page = _HIDDEN.sub(hide, "".join([*kept, page[last:]]))
    lines = [match[2] for match in _LINKS.finditer(page)]
    counts = Counter(lines)
    notices = {line for line in counts if _is_notice(_LINK.findall(line), counts[line])}
    num_words = sum(len(_words(line).split()) for line in lines if line in notices)
    if not notices or num_words > _MAX_SHARE * len(_words(page).split()):
        return page, skipped
    skipped += [Skipped(_words(line), _NOT_CONTENT) for line in lines if line in notices]
    return _LINKS.sub(lambda match: match[1] if match[2] in notices else match[0], page), skipped


def _asides(page: str) -> list[tuple[int, int]]:
    """Returns the start and the end of the outermost elements that are not the content; one of any content is less than half."""
    opened: dict[str, list[int]] = {}
    ends: dict[int, int] = {}
    for match in _BOX.finditer(page):
        starts = opened.setdefault(match[2].lower(), [])
        if not match[1]:
            starts.append(match.start())
        elif starts:
            ends[starts.pop()] = match.end()
    found: list[tuple[int, int]] = []
    for match in _ASIDE.finditer(page):
        start, end = match.start(), ends.get(match.start(), 0)
        is_header = match[0][1:7].lower() == "header"
        is_short = 0 < end - start <= (_MAX_HEADER_LETTERS if is_header else _MAX_ASIDE_LETTERS)
        if not is_short or (found and start < found[-1][1]) or (match["box"] and 2 * (end - start) > len(page)):
            continue
        if not is_header or "<h1" in page[start:end].lower():
            found.append((start, end))
    return found


def _is_notice(links: list[tuple[str, str]], num_times: int) -> bool:
    """Whether a line of links leads elsewhere: a row of short ones, one within the page, or one that recurs."""
    texts = [" ".join(unescape(text).split()) for _, text in links]
    if any(len(text.split()) > _MAX_LINK_WORDS or text[:1].islower() or _TIME.fullmatch(text) for text in texts):
        return False
    if len(links) >= _MIN_ROW:
        return len({target for target, _ in links}) == len(links) and not any(
            to[:1] in ("", "#", "?") for to, _ in links
        )
    is_button = all(target.startswith(("#!", "javascript:")) for target, _ in links)
    if not is_button and (not all(target for target, _ in links) or any(map(name_alone, texts))):
        return False
    return is_button or all(target[0] == "#" for target, _ in links) or num_times > 1 or len(links) > 1


def _words(page: str) -> str:
    return " ".join(unescape(_TAG.sub(" ", page)).split())
