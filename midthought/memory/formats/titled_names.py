"""Names on lines of their own above a line with the speaker's title, such as `Ann Lee`, `Analyst, Bell Works`, as in printed
calls of companies."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from midthought.memory.formats.line_heads import Head, is_label
from midthought.memory.formats.scripts import ends_sentence

STYLE = "name / title"
_MAX_TITLE_WORDS = 14
_MIN_CAPITALS_SHARE = 0.6
_MIN_LETTERS = 4
"""Of the words of a title that have capitals."""
_MAX_NAME_WORDS = 5
_MAX_HEADING_WORDS = 4
_MIN_LINE_WORDS = 6
_LABELLED = re.compile(r"(?P<name>[^\W\d_][^:()\[\]]{1,39}):\s+\S")
_MIN_TITLED = 2
_MIN_HEADS = 6
_MIN_ALONE = 3
_MOST = 0.8


def titled_names(texts: Sequence[str], alone: Sequence[str | None]) -> dict[int, Head]:
    """Returns the rows that start turns, if at least two names recur, each above the same title; also names that occur once above
    a title, or recur without one, or before a colon, such as `Operator`, at places at which a turn may start. `alone` has the
    rows that may be names and nothing else."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(alone[:-2]):
        if name is not None and len(name.split()) <= _MAX_NAME_WORDS:
            places[name].append(place)
    pairs = Counter(
        (name, texts[place + 1]) for name, found in places.items() for place in found if _is_title(texts[place + 1])
    )
    known = {pair for pair, num in pairs.items() if num > 1 and num >= _MOST * (len(places[pair[0]]) - 1)}
    titles = {title for _, title in known}
    known = {(name, title) for name, title in known if name not in titles}
    if len({name for name, _ in known}) < _MIN_TITLED:
        return {}
    is_start = [_may_start(texts, place) for place in range(len(texts))]
    heads = {
        place: Head(STYLE, name, None, "")
        for name, found in places.items()
        for place in found
        if name not in titles
        and (
            (name, texts[place + 1]) in known
            or (is_start[place] and _is_title(texts[place + 1]) and not texts[place + 2][:1].islower())
        )
    }
    taken = titles | {head.name for head in heads.values()}
    for name, found in places.items():
        starts = [place for place in found if is_start[place] and place - 1 not in heads and _is_line(texts[place + 1])]
        if name not in taken and len(starts) >= max(_MIN_ALONE, _MOST * (len(found) - 1)):
            heads |= {place: Head("name", name, None, "") for place in found if _is_line(texts[place + 1])}
    inline: dict[str, list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        if is_start[place] and (match := _LABELLED.match(text)) and is_label(match["name"]):
            inline[match["name"]].append(place)
    printed = {head.name for head in heads.values()}
    for name, found in inline.items() if heads else ():
        if name in printed or len(found) >= _MIN_ALONE:
            heads |= {place: Head("name:", name, None, texts[place][len(name) + 1 :].lstrip()) for place in found}
    return _without_list(texts, heads)


def _is_title(text: str) -> bool:
    """Whether the row may be a title and a company: most of its words have capitals, and it is no sentence."""
    words = [word for word in text.split() if len(word) >= _MIN_LETTERS and word[0].isalpha()]
    num_capitals = sum(word[0].isupper() for word in words)
    return (
        1 < len(text.split()) <= _MAX_TITLE_WORDS
        and not text.endswith((".", "?", "!", ":"))
        and num_capitals >= _MIN_CAPITALS_SHARE * len(words) > 0
    )


def _is_line(text: str) -> bool:
    """Whether the row may be the first one of what somebody says."""
    return ends_sentence(text) or (len(text.split()) >= _MIN_LINE_WORDS and not _is_title(text))


def _may_start(texts: Sequence[str], place: int) -> bool:
    """Whether the row before ends a sentence, or is a heading below the end of one."""
    if place == 0 or ends_sentence(texts[place - 1]):
        return True
    return place > 1 and len(texts[place - 1].split()) <= _MAX_HEADING_WORDS and ends_sentence(texts[place - 2])


def _without_list(texts: Sequence[str], heads: dict[int, Head]) -> dict[int, Head]:
    """Returns the heads from the first one on whose words end sentences: those before it are in a list."""
    places = sorted(heads)
    ends = [*places[1:], len(texts)]
    said = [
        any(map(ends_sentence, [heads[place].rest or "x", *texts[place + 1 + (heads[place].style == STYLE) : end]]))
        for place, end in zip(places, ends, strict=True)
    ]
    first = next((number for number, is_said in enumerate(said) if is_said), len(said))
    kept = places[first:]
    is_usual = len(kept) >= _MIN_HEADS and sum(said[first:]) >= _MOST * len(kept)
    return {place: heads[place] for place in kept} if is_usual else {}
