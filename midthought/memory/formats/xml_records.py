"""XML whose elements are records, such as `<segment><start>0.5</start><speaker>A</speaker><text>…</text></segment>`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from midthought.memory.formats.json_documents import read_document
from midthought.memory.formats.json_entries import Entry, folded_keys, speaker_of, start_of, text_of
from midthought.memory.formats.reading import Reading, Skipped
from midthought.memory.formats.registry import transcript_format
from midthought.memory.markup import unescape, without_comments

_RECORD = re.compile(
    r"<(?P<tag>\w{1,40})\b[^<>]{0,500}>(?P<fields>(?:\s*<(?P<key>\w{1,40})\b[^<>]{0,500}>[^<>]*</(?P=key)>){2,20})\s*</(?P=tag)>"
)
_FIELD = re.compile(r"<(\w{1,40})\b[^<>]*>([^<>]*)</\1>")
_TAG = re.compile(r"<[^<>]*>")
_INLINE = re.compile(r"</?(?:b|i|u|em|strong|span|su[bp])(?:\s[^<>]{0,300})?>|<\w[^<>]{0,500}/>")
_HEAD_LETTERS = 20_000
_MIN_RECORDS = 2


def _has_records(text: str, suffix: str) -> bool:
    if not text[:200].lstrip().startswith("<"):
        return False
    found = list(_records(_plain(text[:_HEAD_LETTERS])))
    keys = [folded_keys(dict.fromkeys(record, "1")) for record in found]
    known = [each for each in keys if text_of(each) and (speaker_of(each) or start_of(each))]
    return len(known) >= _MIN_RECORDS and 2 * len(known) > len(found)


@transcript_format(
    "XML records",
    suffixes=(),
    remedy="give it '<segment><start>0.5</start><speaker>Ann</speaker><text>words</text></segment>'",
    shown_by=_has_records,
)
def read_records(text: str) -> Reading:
    """Each element whose children have only text is an entry, as one of a JSON list."""
    text = _plain(text)
    reading = read_document(list(_records(text)))
    skipped = tuple(Skipped(words, "outside of the records") for words in _outside(text))
    return reading._replace(skipped=(*reading.skipped, *skipped))


def _plain(text: str) -> str:
    """Returns the text without comments, empty elements and tags of emphasis, which may stand within a field."""
    return _INLINE.sub("", without_comments(text))


def _outside(text: str) -> Iterator[str]:
    """Yields the words of the elements that are no records."""
    end = 0
    for start, after in [*(record.span() for record in _RECORD.finditer(text)), (len(text), 0)]:
        yield from filter(None, (" ".join(unescape(words).split()) for words in _TAG.split(text[end:start])))
        end = after


def _records(text: str) -> Iterator[Entry]:
    for record in _RECORD.finditer(text):
        yield {key: unescape(value).strip() for key, value in _FIELD.findall(record["fields"])}
