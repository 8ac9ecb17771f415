"""Repairs of a chosen layout: signs before the words and a word at the ends of labels that belong to the notation."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from midthought.memory.formats.line_candidates import Layout, Row, bare_style, is_annotation, key_of
from midthought.memory.formats.line_heads import TIMED_STYLES, Head
from midthought.memory.formats.line_tokens import common_start, end_and_time
from midthought.memory.formats.notations import common_word
from midthought.memory.formats.scripts import ends_sentence

_MIN_CUT_HEADS = 6
_MIN_HEADS = 6
_SIGN = r"(?![:()\[\]\"“„«])[\p{Lu}\p{N}\p{P}\p{S} ]"
_SIGNED = regex.compile(
    rf"(?=[^:]{{0,30}}[\p{{Lu}}?])(?P<name>\({_SIGN}{{1,30}}\)|\[{_SIGN}{{1,30}}\]|{_SIGN}{{1,30}})\s?:\s+(?P<rest>\S.*)",
    regex.DOTALL,
)
_JOINT = regex.compile(r"\s*[,/&+]\s*|\s+\p{Ll}{1,3}\s+")
_MAX_JOINT_LETTERS = 60
_PLAIN = regex.compile(r"[\p{L}\p{N} ]+")


def add_signed_labels(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds labels of capitals and signs, such as `(UNKNOWN):` and `???:`, to labels with a colon."""
    num_colons = sum(rows[place].text.startswith(f"{head.name}:") for place, head in layout.heads.items())
    if num_colons < max(_MIN_HEADS, 0.5 * len(layout.heads)):
        return
    for place in range(min(layout.heads) + 1, len(rows)):
        row = rows[place]
        is_start = row.after_blank or ends_sentence(rows[place - 1].text)
        match = _SIGNED.fullmatch(row.text) if is_start and place not in layout.heads and not row.mark else None
        if match and not _PLAIN.fullmatch(match["name"]) and not is_annotation(key_of(match["name"])):
            layout.heads[place] = Head("name:", match["name"], None, match["rest"])


def add_joint_labels(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds labels of two or more known ones with a sign or a short word between them, such as `Ann dan Bob:`."""
    labels = {key_of(head.name or "") for head in layout.heads.values()}
    for place in range(min(layout.heads) + 1, len(rows)):
        name, colon, rest = rows[place].text[:_MAX_JOINT_LETTERS].partition(":")
        parts = _JOINT.split(name) if colon and place not in layout.heads and rows[place].mark != "code" else []
        if len(parts) > 1 and labels.issuperset(map(key_of, parts)) and rest[:1] in ("", " "):
            layout.heads[place] = Head("name:", name, None, rows[place].text[len(name) + 1 :].lstrip())


def remove_common_start(layout: Layout) -> None:
    """Removes what stands before the words of all turns if it has a number, such as `[AM 10:02] `; its time is the turn's."""
    rests = [head.rest for head in layout.heads.values()]
    if len(rests) < _MIN_CUT_HEADS or bare_style(layout.style) in TIMED_STYLES:
        return
    size = common_start(rests)
    if not size:
        return
    for place, head in layout.heads.items():
        end, time = end_and_time(head.rest, size)
        layout.heads[place] = head._replace(rest=head.rest[end:], time=head.time or time)


def remove_common_word(layout: Layout) -> None:
    """Removes a word in lower case at the ends of all labels, such as `says`, which is part of the notation; also of labels
    that occur without it."""
    names = {place: (head.name or "").rstrip(" :") for place, head in layout.heads.items()}
    bare = set(names.values())
    ends = {place: name.rpartition(" ") for place, name in names.items()}
    repeated = [parts for parts in ends.values() if parts[0] in bare]
    word = common_word(names.values()) or common_word(" ".join(parts[::2]) for parts in repeated)
    if word:
        layout.heads = {
            place: head._replace(name=ends[place][0]) if ends[place][0] and ends[place][2] == word else head
            for place, head in layout.heads.items()
        }
