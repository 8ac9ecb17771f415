"""Signs that lines of text were misunderstood: each lowers the confidence and is reported as a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from midthought.memory.formats.header_fields import is_role_key
from midthought.memory.formats.line_candidates import (
    ODD,
    WEAK,
    Layout,
    Row,
    is_annotation,
    is_name_list,
    key_of,
    share_in_order,
)
from midthought.memory.formats.line_heads import TIMED_STYLES, Head
from midthought.memory.formats.reading import name_of

_MAX_OTHER_SHARE = 0.01
"""Share of lines that start like turns and were read as text, of the turns, from which on a file is doubtful."""


def judge_named(
    layout: Layout, rows: Sequence[Row], candidates: dict[str, dict[int, Head]], num_words: Sequence[int]
) -> None:
    places = sorted(layout.heads)
    labels = Counter(key_of(layout.heads[place].name or "") for place in places)
    times = [layout.heads[place].time for place in places]
    total = sum(num_words)
    layout.confidence = 0.98 if any(times) else 0.93
    order = share_in_order([time for time in times if time])
    if order < 0.98:
        layout.doubt(f"{1 - order:.0%} of the times go back", min(0.4, 0.05 + 2 * (1 - order)))
    if len(places) > 3 and len(labels) == len(places):
        layout.doubt("every speaker label occurs once", 0.3)
    elif len(labels) > 25 and len(labels) > len(places) / 3:
        layout.doubt(f"{len(labels)} speaker labels for {len(places)} turns", 0.3)
    longest = max(sum(num_words[start:end]) for start, end in pairwise([*places, len(rows)]))
    if total > 400 and len(places) > 2 and longest > 0.6 * total:
        layout.doubt(f"one turn has {longest / total:.0%} of the words", 0.3)
    if len(places) == 1 and total > 200:
        layout.doubt("there is one turn only", 0.2 if len(layout.heads[places[0]].rest.split()) > 4 else 0.3)
    alike = {*candidates.get(layout.style, ()), *candidates.get(ODD + layout.style, ())}
    others = {
        place: name_of(head.name or "")
        for style in (layout.style, ODD + layout.style, "name:")
        for place, head in candidates.get(style, {}).items()
        if place not in layout.heads and place > places[0]
        if place - 1 not in layout.heads or layout.heads[place - 1].rest.strip()  # else: said by that speaker
        if not (is_role_key(key_of(head.name or "")) and is_name_list(head.rest))
    }
    if others:
        names = sorted(set(others.values()))
        what = (
            f"read as text, not as speakers: {', '.join(map(repr, names[:5]))}{' and more' if len(names) > 5 else ''}"
        )
        is_strict = layout.style == "bold name" or layout.style in TIMED_STYLES - WEAK
        layout.doubt(
            what,
            0.3 if (is_strict and alike & others.keys()) or len(others) >= _MAX_OTHER_SHARE * len(places) else 0.05,
        )


def judge_unnamed(layout: Layout, rows: Sequence[Row], candidates: dict[str, dict[int, Head]]) -> None:
    if not layout.style:
        layout.confidence = layout.confidence or 0.8
    counts = Counter(
        name_of(head.name or "")
        for style, found in candidates.items()
        if style not in ("name", "any:", "name |", ODD + "any:") and not style.startswith("# ") and style != "bold name"
        for head in found.values()
    )
    starts = Counter(" ".join(row.text.split()[:2]) for row in rows if len(row.text.split()) > 2)
    if len(rows) > 8 and sum(count for _, count in starts.most_common(2) if count > 3) > 0.3 * len(rows):
        layout.doubt(f"many lines start alike: {', '.join(repr(start) for start, _ in starts.most_common(2))}", 0.3)
    labels = {name: count for name, count in counts.items() if not is_annotation(name.casefold())}
    if num := sum(labels.values()):
        names = ", ".join(repr(name) for name, _ in Counter(labels).most_common(3))
        cost = 0.3 if num >= max(2, 0.02 * len(rows)) else 0.05
        layout.doubt(f"lines that start like turns were read as text: {names}", cost)
