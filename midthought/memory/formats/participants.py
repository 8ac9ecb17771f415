"""Who takes part: labels that occur once and are not listed start no turn; labels with an office or a place are names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import regex

from midthought.memory.formats.line_candidates import Layout, key_of
from midthought.memory.formats.line_heads import described_name
from midthought.memory.formats.scripts import is_role

_KEYS = frozenset({
    "anwesend", "anwesende", "asistentes", "attendees", "participantes", "participants", "partecipanti", "present",
    "présents", "speakers", "teilnehmer", "teilnehmende", "присутствовали", "участники", "参加者", "出席者", "参会人",
})  # fmt: skip
"""Header fields that list who speaks."""
_WORD = regex.compile(r"[\p{L}\p{M}]{2,}")
_MAX_SHARE = 0.2


def merge_described(layout: Layout) -> tuple[tuple[str, str], ...]:
    """Replaces labels such as `Ann Lee (Harbour) (Ind)` by the name in them if it is a label, too; returns them as fields."""
    labels = {key_of(head.name) for head in layout.heads.values() if head.name}
    fields: dict[str, str] = {}
    for place, head in layout.heads.items():
        name = described_name(head.name) if head.name else None
        if name and key_of(name) in labels:
            fields[head.name or ""] = name
            layout.heads[place] = head._replace(name=name)
    return tuple(("speaker", full) for full in fields)


def reject_strangers(layout: Layout, fields: Sequence[tuple[str, str]]) -> None:
    """Removes such labels, if they are few, and adds a doubt that names them."""
    listed = " ".join(value for key, value in fields if key.casefold() in _KEYS)
    words = set(_WORD.findall(listed.casefold()))
    labels = Counter(key_of(head.name) for head in layout.heads.values() if head.name)
    strangers = {
        label
        for label, count in labels.items()
        if count == 1 and not is_role(label) and words.isdisjoint(_WORD.findall(label))
    }
    if not words or not strangers or len(strangers) > _MAX_SHARE * labels.total() or len(labels) - len(strangers) < 2:
        return
    first = min(layout.heads)
    for place, head in list(layout.heads.items()):
        if head.name and key_of(head.name) in strangers and place != first:
            del layout.heads[place]
    said = {word for head in layout.heads.values() for word in _WORD.findall(head.rest)}  # in lower case: no names
    names = ", ".join(map(repr, sorted(strangers)[:5]))
    what = f"read as text, not as speakers, as they are not among the participants: {names}"
    layout.doubt(what, 0.05 if strangers <= said else 0.3)
