"""Repairs of a chosen layout: labels that end too early or too late, and headings between names that are headings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from midthought.memory.formats.line_candidates import OF_SENTENCES, Layout, Row, bare_style, key_of
from midthought.memory.formats.line_heads import TIMED_STYLES, Head
from midthought.memory.formats.notations import INDUCED, common_start, common_word, end_and_time, is_label_cut

_MIN_CUT_HEADS = 6


def add_headings(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds headings that recur between names that are headings; others are reported: text below them may be another one's."""
    if not layout.style.startswith("# "):
        return
    first, last = min(layout.heads), max(layout.heads)
    others = [place for place in range(first, last) if rows[place].mark == "#" and place not in layout.heads]
    counts = Counter(key_of(rows[place].text) for place in others)
    for place in others:
        if counts[key_of(rows[place].text)] > 1:
            layout.heads[place] = Head("name", rows[place].text, None, "")
        elif place + 1 < len(rows) and rows[place + 1].mark != "#":
            layout.leftovers.append(rows[place].text)


def complete_labels(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds the next word to labels as long as each label is always followed by the same one, as in `Dr. Lee`."""
    if bare_style(layout.style) not in (INDUCED, *OF_SENTENCES):
        return
    while len(layout.heads) >= _MIN_CUT_HEADS and is_label_cut(layout.heads):
        for place, head in layout.heads.items():
            text, (word, rest) = rows[place].text, (*head.rest.split(maxsplit=1), "")[:2]
            end = len(text) - len(head.rest.lstrip())
            begin = text.rfind(head.name or "", 0, end)
            layout.heads[place] = head._replace(name=text[max(0, begin) : end] + word, rest=rest)
        if all((head.name or "").endswith(".") for head in layout.heads.values()):
            layout.heads = {place: head._replace(name=(head.name or "")[:-1]) for place, head in layout.heads.items()}


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
