"""What stands above and below prose and is no speech: titles, links, a first field, lines of a publisher."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from midthought.memory.formats.header_fields import field_of
from midthought.memory.formats.line_candidates import Row
from midthought.memory.formats.line_heads import heads_of
from midthought.memory.formats.scripts import ends_sentence, word_count

_ADDRESS = re.compile(r"<?(?:https?://|www\.)\S+")
_COPYRIGHT = re.compile(
    r"(?i)©|copyright (?:\(c\)|\W){0,4}\d{4}\b(?! (?!by\b|all\b)(?-i:[a-z]))|all rights reserved\W{0,3}$"
)
"""Not "Copyright 1990 was the year"."""
_NAVIGATION = re.compile(r"[←→↑↩]\s?\S|[«‹]\s?\S+(?:\s\S+){0,2}$|[^·|]{1,60}\s[·|]\s[^·|]{1,60}\s[·|]\s[^·|]{1,60}$")
"""A link to another page, or a line of short items."""
_MAX_ROWS = 12
_MAX_MENU_ROWS = 40
_MAX_WORDS = 30
_MAX_SHARE = 0.1
"""Of the words, in the last rows that a publisher adds."""
_MAX_TITLE_WORDS = 15
_MAX_TITLE_ROWS = 5
_MAX_FIELD_WORDS = 6
_MAX_KEY_WORDS = 2


def first_field(text: str) -> tuple[str, str] | None:
    """Returns the first line as a field if its value is a few words that are no sentence, as in `Interviewed: a baker of 23`."""
    field = field_of(text)
    is_short = field is not None and 0 < len(field[1].split()) <= _MAX_FIELD_WORDS and not ends_sentence(field[1])
    return field if is_short and field and len(field[0].split()) <= _MAX_KEY_WORDS else None


def publishers_end(rows: Sequence[Row]) -> int:
    """Returns where prose ends: at one of the last rows that has a sign such as `©` and is short, as the others after it are."""
    sizes = [word_count(row.text) for row in rows]
    for place in range(max(1, len(rows) - _MAX_ROWS), len(rows)):
        are_short = all(size <= _MAX_WORDS for size in sizes[place:])
        if _COPYRIGHT.match(rows[place].text) and are_short and sum(sizes[place:]) < _MAX_SHARE * sum(sizes):
            return place
    return len(rows)


def edges(rows: Sequence[Row], above: Collection[str]) -> tuple[Sequence[Row], list[Row]]:
    """Returns the rows of prose without, and those with, lines of navigation at its start and a publisher's lines or a menu at
    its end; `above` has the lines of the header."""
    start, end = 0, publishers_end(rows)
    while start < end - 1 and _is_short(rows[start].text) and _NAVIGATION.match(rows[start].text):
        start += 1
    menu = end
    while (
        menu > max(start + 1, end - _MAX_MENU_ROWS) and _is_short(rows[menu - 1].text) and rows[menu - 1].text in above
    ):
        menu -= 1
    end = menu if end - menu > 1 else end
    return rows[start:end], [*rows[:start], *rows[end:]]


def _is_short(text: str) -> bool:
    return len(text.split()) <= _MAX_TITLE_WORDS and not ends_sentence(text)


def num_title_rows(rows: Sequence[Row]) -> int:
    """Returns the number of short lines that are no sentences and stand before the first blank line."""
    num = next((place for place, row in enumerate(rows) if place and row.after_blank), 0)
    address = next((place for place, row in enumerate(rows[:_MAX_TITLE_ROWS]) if _ADDRESS.fullmatch(row.text)), None)
    if address is not None and len(rows) > address + 1 and all(_is_short(row.text) for row in rows[:address]):
        return address + 1
    if num > _MAX_TITLE_ROWS or (num == 1 and (heads_of(rows[0].text) or rows[1].text[0].islower())):
        return 0
    are_short = all(len(row.text.split()) <= _MAX_TITLE_WORDS + 5 * bool(place) for place, row in enumerate(rows[:num]))
    return num if are_short and not any(ends_sentence(row.text.rstrip(")]*_")) for row in rows[:num]) else 0
