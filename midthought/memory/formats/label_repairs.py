"""Repairs of a chosen layout: signs before the words and a word at the ends of labels that belong to the notation."""

from __future__ import annotations

from collections import Counter
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
_AUDIENCE = frozenset({"AUDIENCE", "CROWD", "QUESTION", "REPORTER", "VOICE", "VOICES"})
_MIN_CAPITALS = 20
_JOINT = regex.compile(r"\s*[,/&+]\s*|\s+\p{Ll}{1,3}\s+")
_MAX_JOINT_LETTERS = 60
_TURN_SIGN = regex.compile(r"(?:>>+|[-–—])\s+(?=\S)")
_MOST = 0.9
_MOST_SENTENCES = 0.7
_LONG_WORDS = 12
"""Of a row with a dash, on average; items of a list have fewer."""
_PLAIN = regex.compile(r"[\p{L}\p{N} ]+")


def add_signed_labels(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds labels of capitals and signs, such as `(UNKNOWN):` and `???:`, to labels with a colon; and an
    audience, such as `QUESTION:`, to labels in capitals."""
    num_colons = sum(rows[place].text.startswith(f"{head.name}:") for place, head in layout.heads.items())
    if num_colons < max(_MIN_HEADS, 0.5 * len(layout.heads)):
        return
    num_capitals = sum((head.name or "").isupper() for head in layout.heads.values())
    are_capitals = num_capitals >= max(_MIN_CAPITALS, _MOST * len(layout.heads))
    for place in range(min(layout.heads) + 1, len(rows)):
        row = rows[place]
        is_start = row.after_blank or ends_sentence(rows[place - 1].text)
        match = _SIGNED.fullmatch(row.text) if is_start and place not in layout.heads and not row.mark else None
        is_audience = are_capitals and match is not None and match["name"] in _AUDIENCE
        if match and (is_audience or not (_PLAIN.fullmatch(match["name"]) or is_annotation(key_of(match["name"])))):
            layout.heads[place] = Head("name:", match["name"], None, match["rest"])


def add_joint_labels(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds labels of two or more known ones with a sign or a short word between them, such as `Ann dan Bob:`."""
    labels = {key_of(head.name or "") for head in layout.heads.values()}
    for place in range(min(layout.heads) + 1, len(rows)):
        name, colon, rest = rows[place].text[:_MAX_JOINT_LETTERS].partition(":")
        parts = _JOINT.split(name) if colon and place not in layout.heads and rows[place].mark != "code" else []
        if len(parts) > 1 and labels.issuperset(map(key_of, parts)) and rest[:1] in ("", " "):
            layout.heads[place] = Head("name:", name, None, rows[place].text[len(name) + 1 :].lstrip())


def capital_labels(rows: Sequence[Row], candidates: dict[str, dict[int, Head]]) -> dict[int, Head]:
    """Returns the starts of turns of labels in capitals that recur, such as `AUDIENCE MEMBER:`, in a text in which arrows such
    as `>>` start the other turns."""
    if sum(row.text.startswith(">>") for row in rows) < _MIN_HEADS:
        return {}
    found = {place: head for place, head in candidates.get("name:", {}).items() if (head.name or "").isupper()}
    counts = Counter(head.name for head in found.values())
    return {place: head for place, head in found.items() if counts[head.name] > 1}


def add_unnamed_turns(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds turns of nobody: rows with a dash, or with an arrow such as `>>`, between labelled ones, if they have the habit of
    turns: no label follows the sign, and nearly all other rows have it (dashes) or it is an arrow."""
    own = [place for place, row in enumerate(rows) if place not in layout.heads and not row.mark]
    if not own or any(_TURN_SIGN.match(rows[place].text) for place in layout.heads):
        return
    found = {place: match for place in own if (match := _TURN_SIGN.match(rows[place].text))}
    arrows = [place for place, match in found.items() if match[0][0] == ">"]
    dashes = [place for place, match in found.items() if match[0][0] != ">"]
    first = [place - 1 for place in dashes if place - 1 not in found]
    if 2 * sum(rows[place].text.rstrip().endswith((":", "：")) for place in first) > len(first):
        dashes = []  # items of lists
    num_words = sum(len(rows[place].text.split()) for place in dashes)
    num_sentences = sum(ends_sentence(rows[place].text) for place in dashes)
    are_sentences = num_sentences >= _MOST_SENTENCES * len(dashes) or num_words > _LONG_WORDS * len(dashes)
    if len(arrows) < _MIN_HEADS and not (len(dashes) >= max(_MIN_HEADS, _MOST * len(own)) and are_sentences):
        return
    for place in arrows if len(arrows) >= _MIN_HEADS else dashes:
        layout.heads[place] = Head("name:", "", None, rows[place].text[found[place].end() :])


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
