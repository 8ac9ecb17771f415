"""Who takes part: labels that occur once and are not listed start no turn; labels with an office or a place are names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

import regex

from midthought.memory.formats.line_candidates import Layout, key_of
from midthought.memory.formats.line_heads import described_name, is_label
from midthought.memory.formats.scripts import ends_sentence, is_role

_KEYS = frozenset({
    "anwesend", "anwesende", "asistentes", "attendees", "participantes", "participants", "partecipanti", "present",
    "présents", "speakers", "teilnehmer", "teilnehmende", "присутствовали", "участники", "参加者", "出席者", "参会人",
})  # fmt: skip
"""Header fields that list who speaks."""
_WORD = regex.compile(r"[\p{L}\p{M}]{2,}")
_INITIALS = regex.compile(r"(?:\p{Ll}\.?[\s-]?){2,3}")
_MIN_FIRST_WORDS = 15
_MAX_SHARE = 0.2
_MAX_USES = 2
"""Of a label such as `Q3`, on average."""
_NUMBERED = re.compile(r"([QA])\d{1,3}")
_BRACKETED = re.compile(r"([^()]{2,60}?) \([^()]{1,40}\)")


def merge_described(layout: Layout) -> None:
    """Replaces labels such as `Ann Lee (Harbour) (Ind)`, `Ann (laughing)`, `Ann Lee, Head of Ferries` and `Q3` by the name in
    them if it is a label, or recurs, too; they become fields."""
    labels = {key_of(head.name): head.name for head in layout.heads.values() if head.name}
    names = {key: _shorter_name(name) for key, name in labels.items()}
    counts = Counter(name for key, name in names.items() if name and not labels[key].endswith(")"))
    in_brackets = Counter(name for key, name in names.items() if name and labels[key].endswith(")"))
    uses = Counter(key_of(head.name) for head in layout.heads.values() if head.name)
    num_numbered = sum(uses[key] for key, label in labels.items() if _NUMBERED.fullmatch(label))
    recur = num_numbered > _MAX_USES * (counts["Q"] + counts["A"])  # `Q1` and `Q2` are two who ask
    numbered = {name for name in ("Q", "A") if counts["Q"] > 1 and (counts["A"] or "a" in labels) and not recur}
    fields: dict[str, str] = {}
    for place, head in layout.heads.items():
        name = names.get(key_of(head.name)) if head.name else None
        if (
            name is None
            or head.name is None
            or (name not in numbered if _NUMBERED.fullmatch(head.name) else key_of(name) not in labels)
        ):
            continue
        is_in_brackets = head.name.endswith(")")
        is_one = bool(described_name(head.name)) or (in_brackets if is_in_brackets else counts)[name] == 1
        is_remark = is_in_brackets and head.name[len(name) :].lstrip(" (")[:1].islower()
        if is_one or name in numbered or (is_remark and 2 * uses[key_of(head.name)] <= uses[key_of(name)]):
            fields[head.name] = name
            layout.heads[place] = head._replace(name=name)
    layout.fields = tuple(("speaker", full) for full in fields)


def _shorter_name(label: str) -> str | None:
    match = _NUMBERED.fullmatch(label) or _BRACKETED.fullmatch(label)
    before, _, title = label.partition(", ")
    is_title = is_role(title) or any(word.islower() for word in title.split())  # `Head of Ferries`, not a second name
    return described_name(label) or (match[1] if match else before if is_title and is_label(before) else None)


def num_fields_before_names(fields: Sequence[tuple[str, str]], labels: Collection[str]) -> int:
    """Returns the number of header fields above first turns whose speakers have a full name there, and its initials later, as in
    `Ann Lee: Good morning.` and `A.L.: So it rang.`"""
    initials = {"".join(filter(str.isalpha, label)) for label in labels if _INITIALS.fullmatch(label)}
    start = next((n for n, (key, _) in enumerate(fields) if initials & _initials_of(key)), len(fields))
    first = fields[start:]
    are_turns = all(not key or initials & _initials_of(key) for key, _ in first)
    num_words = sum(len(value.split()) for _, value in first)
    return start if are_turns and num_words >= _MIN_FIRST_WORDS and ends_sentence(first[-1][1]) else len(fields)


def _initials_of(name: str) -> set[str]:
    """Returns the initials of a name of several words: all, the first two, and the first and last one."""
    letters = "".join(word[0] for word in name.split() if word[0].isalpha()).casefold()
    return {letters, letters[:2], letters[0] + letters[-1]} if len(letters) > 1 else set()


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
