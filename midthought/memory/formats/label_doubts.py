"""Labels that may be no speakers': every sign is a question about one label and about how the text uses its labels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from midthought.memory.formats.header_fields import is_role_key
from midthought.memory.formats.line_candidates import Layout, Row, bare_style, key_of
from midthought.memory.formats.line_heads import TIMED_STYLES, Head, described_name, is_label
from midthought.memory.formats.reading import name_of
from midthought.memory.formats.scripts import ends_sentence, is_role

_WORD = re.compile(r"[^\W\d_]{2,}")
_NOTE = re.compile(r"\s?\([^()]*\)$")
_DIALOG = frozenset({"q", "a", "question", "answer"})
HALVES = _DIALOG | {
    "r",
    "p",
    "f",
    "pergunta",
    "resposta",
    "pregunta",
    "respuesta",
    "frage",
    "antwort",
    "domanda",
    "risposta",
}
"""Labels of questions and answers: one without the other means that the others were read as its words."""
_MANNER = re.compile(r"\s\([a-z][^()]*\)$")
"""How somebody speaks, such as `(through the door)`."""
_LETTERED = re.compile(r"[B-P]\.\s")
_ODD = re.compile(r"an? [^\W\d_]{2,} ?[^\W\d_]*(?<!member)(?<!voice)|.*\|.*|.*[;；,，]|(?:[^-_]*[-_]){4}.*", re.DOTALL)
"""A thing, such as `a recorded vote`, a cell of a table, the end of a clause, a code."""
_NUMBERED_LINE = re.compile(r"\(?\d{1,2}[.)]\s")
_INNER_NUMBER = re.compile(r"\d+(?=.*[^\W\d_])")
_LAST_NUMBER = re.compile(r"\W?\d+$")
_MAX_FIELD_WORDS = 12
_MAX_LABEL_WORDS = 4
_MOST_SENTENCES = 0.8
_SHORT_WORDS = 3
_MIN_MEMBERS = 3
"""Labels that start with the same word, such as `Commissioner`."""


def doubtful_labels(layout: Layout, rows: Sequence[Row]) -> list[str]:
    """Returns the labels, as written, that may be no speakers'."""
    places: dict[str, list[int]] = defaultdict(list)
    for place in sorted(layout.heads):
        places[key_of(layout.heads[place].name or "")].append(place)
    recurring = {label: found[0] for label, found in places.items() if len(found) > 1}
    words = (
        Counter(word for row in rows for word in set(_WORD.findall(row.text.casefold()))) if recurring else Counter()
    )
    masked = Counter(_INNER_NUMBER.sub("#", label) for label in places)
    offices = Counter(label.partition(" ")[0] for label in places if " " in label)
    are_letters = places.keys() <= _DIALOG and sum(bool(_LETTERED.match(row.text)) for row in rows) > 1
    pages = _pages(places) if recurring else set()  # else every label occurs once: another doubt
    num_ends = sum(ends_sentence(head.rest) for head in layout.heads.values())
    first, first_recurring = min(layout.heads, default=0), min(recurring.values(), default=0)

    def is_odd(label: str, found: list[int]) -> bool:
        rests = [layout.heads[place].rest.strip() for place in found]
        is_sentence = len(rests[0].split()) <= _SHORT_WORDS and ends_sentence(rests[0])
        is_advertisement = (
            len(set(rests)) == 1 < len(rests) and len(places) > 2 and not is_role(label) and not is_sentence
        )
        is_number = masked[_INNER_NUMBER.sub("#", label)] > 1 and bool(_INNER_NUMBER.search(label))
        is_shaped = layout.style == "bold name:" and "|" in label  # `Ann Lee | Bell Works`
        if are_letters or is_number or is_advertisement or label in pages or (_ODD.fullmatch(label) and not is_shaped):
            return True
        if len(found) > 1:
            is_usual = num_ends >= _MOST_SENTENCES * (len(layout.heads) - len(found)) and not is_role(label)
            return is_usual and not any(map(_may_be_said, rests))
        after = found[0] + 1
        if not rests[0] and after < len(rows) and _NUMBERED_LINE.match(rows[after].text):
            return bool(recurring)  # `Sure:` before a list
        is_no_dialog = bool(recurring) and recurring.keys() <= HALVES and " " not in label and not is_role(label)
        is_list_line = found[0] == first and is_role_key(label) and _names_one(rests[0], places)
        is_timed = bare_style(layout.style) in TIMED_STYLES and found[0] > first_recurring
        is_known = (
            not recurring
            or is_timed
            or label.partition(",")[0] in recurring
            or (len(label.split()) == 2 and offices[label.split()[0]] >= _MIN_MEMBERS)
            or not _is_line(layout.heads[found[0]], layout.style, words, is_first=found[0] == first)
        )
        return is_no_dialog or is_list_line or not is_known or bool(re.match(r"\d+\s+[^\W\d_]", label))

    return [name_of(layout.heads[found[0]].name or "") for label, found in places.items() if is_odd(label, found)]


def _pages(places: dict[str, list[int]]) -> set[str]:
    """Returns the labels that occur once and differ in a number only, such as `Page-1`, if they are most."""
    found = {
        label for label, own in places.items() if len(own) == 1 and _LAST_NUMBER.search(label) and not is_role(label)
    }
    are_alike = len({_LAST_NUMBER.sub("", label) for label in found}) == 1
    return found if are_alike and len(found) > max(2, 0.5 * len(places)) else set()


def _is_line(head: Head, style: str, words: Counter[str], *, is_first: bool) -> bool:
    """Whether a label is a line of many words, or stands before a few words that are no sentence, as in a title with a colon, if
    not all of its words occur elsewhere."""
    name, rest = name_of(head.name or ""), head.rest.strip()
    if (
        len(name.split()) > _MAX_LABEL_WORDS
        and not described_name(name)
        and (not is_label(_NOTE.sub("", name)) or (is_first and not rest))
    ):
        return True
    is_title = 0 < len(rest.split()) <= _MAX_FIELD_WORDS and not ends_sentence(rest)
    return (
        is_title
        and not style.startswith("bold ")
        and any(words[word] < 2 for word in _WORD.findall(_MANNER.sub("", name).casefold()))
    )


def _may_be_said(text: str) -> bool:
    """Whether the text is a word or two, long or a sentence; else it may be a field's value."""
    return not _SHORT_WORDS <= len(text.split()) <= _MAX_FIELD_WORDS or ends_sentence(text)


def _names_one(text: str, labels: dict[str, list[int]]) -> bool:
    """Whether the text starts with another label, as in `Interviewee: Ann, a baker`."""
    start = text.casefold()
    return any(start.startswith(label) and start[len(label) : len(label) + 1] in ", (" for label in labels if label)
