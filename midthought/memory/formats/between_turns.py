"""Rows that are in no turn, though turns stand before them: titles, notes of programs, lines of a publisher."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from midthought.memory.formats.header_fields import field_of, is_known_key, is_rule
from midthought.memory.formats.line_candidates import Layout, Row, is_annotation, key_of
from midthought.memory.formats.line_heads import Head, is_label, time_head
from midthought.memory.formats.line_times import is_title
from midthought.memory.formats.scripts import ends_sentence, is_role, word_count
from midthought.memory.formats.spoken_words import SPOKEN
from midthought.memory.formats.word_lists import NUMBERED

_MAX_TITLE_WORDS = 15
_MIN_CAPITALS = 2
"""Words of a heading in capitals."""
_MAX_LOOSE_WORDS = 10
_MAX_LOOSE_SHARE = 0.34
_MIN_TURNS = 6
_MOST = 0.9
_MAX_KEY_WORDS = 4
_MIN_REPEATED = 3
_MIN_DOCUMENT_LINES = 3
_NUMBERED_LINE = re.compile(r"\(?\d{1,2}[.)]\s")
_MOST_REPEATED = 0.8
_MAX_INNER_SHARE = 0.05
_NUMBERED_TITLE = re.compile(r"(\w+) \d{1,3}\s?[:.–—-](?:\s|$)")
_PUBLISHER = re.compile(
    r"(?i)©|\bcopyright\b|all rights reserved|\blicen[cs]ed under\b|https?://|\bwww\.|\btranscri(?:pt|bed)|^\S+\.[a-z]{2,9}\S{0,60}$"
)
"""Signs of lines that a publisher adds."""
_RIGHTS = re.compile(r"(?i)©|all rights reserved|^https?://\S+$")
_SENTENCE = re.compile(r"[.!?…。！？]\s+\W*\w?")
_VALUE = re.compile(r"[:：].*[^\W\d_]{3}")
"""A field with words as its value, not only times as in `Outro: [58:05] to [59:55]`."""
_MEETING_NOTES = re.compile(
    r"(?i)[\s#*_]*(?:actions?(?: (?:items?|points|required))?|next steps|(?:key |main )?decisions(?: made)?|"
    r"(?:meeting |executive )?summary|attendees|attendance|participants|outcomes|follow[- ]?ups?|to[- ]?dos?)[\s:*_]*"
)
"""Headings of notes on a meeting, in which names stand before tasks."""
_MAX_NOTES_SHARE = 0.25
_SOUND = re.compile(r"(?P<label>[^\s:()\[\]][^:()\[\]]{0,20}):\s?[(\[][^()\[\]]{1,200}[)\]]")
_NOTE = re.compile(r"[(\[（［【<][^()（）]*[)\]）］】>]\W?")


def mark_repeated_rows(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds rows with the same few words directly before, or after, the starts of nearly all turns to the notes, as pages show
    `user avatar` at each."""
    heads = sorted(layout.heads)
    if len(heads) < _MIN_TURNS - 2:
        return
    after = [next(row for row in range(place + 1, len(rows) + 1) if row not in layout.used) for place in heads]
    starts = {*layout.heads, *layout.used}
    for is_after, places in enumerate(([place - 1 for place in heads[1:]], [row for row in after if row < len(rows)])):
        texts = Counter(rows[place].text for place in places if place not in starts)
        for text, num in texts.most_common(1):
            is_usual = num >= max(_MIN_REPEATED, _MOST_REPEATED * len(heads)) and len(text.split()) <= _MAX_KEY_WORDS
            found = [place for place, row in enumerate(rows) if row.text == text and place not in layout.heads]
            ends_turn = is_after or not all(rows[place].after_blank for place in found[1:])
            may_be_said = text[:1].isupper() and ends_turn  # "Amen"
            if is_usual and not may_be_said and not ends_sentence(text):
                layout.notes |= dict.fromkeys(found, "recurs at every turn")


def mark_loose_rows(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds titles before turns, and notes in brackets after the last one, to the notes, if the text's habit shows that they are
    no speech: other paragraphs end as sentences do."""
    paragraphs = _paragraphs(layout, rows)
    turns = [(place, end) for place, end in paragraphs if place in layout.heads]
    own = [(place, end) for place, end in paragraphs if place not in layout.heads]
    if len(turns) < _MIN_TURNS or not own:
        return
    are_sentences = sum(ends_sentence(rows[end].text) for _, end in turns) >= _MOST * len(turns)
    next_start = {
        place: following
        for (place, _), (following, _) in zip(paragraphs, [*paragraphs[1:], (len(rows), 0)], strict=True)
    }
    starts = {*layout.heads, len(rows)}
    titles = [
        place for place, end in own if place == end and _is_loose(rows[place].text) and next_start[place] in starts
    ]
    if are_sentences and len(titles) <= max(2, _MAX_LOOSE_SHARE * len(turns)):
        layout.notes |= dict.fromkeys(titles, "title between turns")
    last = max(layout.heads)
    after = [place for place, end in own if place > last and place == end and _NOTE.fullmatch(rows[place].text)]
    layout.notes |= dict.fromkeys(after, "note after the last turn")


def mark_capitals(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds headings in capitals, after the end of a sentence, to the notes; what follows the last one without a speaker, to
    the leftovers."""
    first, last = min(layout.heads), max(layout.heads)
    if 2 * sum(row.text.isupper() for row in rows) > len(rows):
        return
    for place in range(first + 1, len(rows)):
        text, above = rows[place].text, rows[place - 1].text
        is_free = place not in layout.heads and place - 1 not in layout.used and not _is_below_name(layout, rows, place)
        is_title = text.isupper() and len(text.split()) >= _MIN_CAPITALS and not text.endswith(("?", "!", "."))
        if (
            is_free
            and is_title
            and (place - 1 in layout.notes or rows[place].after_blank or is_rule(above) or ends_sentence(above))
        ):
            layout.notes[place] = "heading in capitals"
    end = max((place for place, reason in layout.notes.items() if reason == "heading in capitals"), default=0)
    if last < end < len(rows) - 1:
        layout.leftovers.append(rows[end + 1].text)


def mark_meeting_notes(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds the first labelled row below a last heading such as `Action items` to the leftovers, if few words follow it."""
    found = [
        place
        for place in range(min(layout.heads) + 1, len(rows))
        if place not in layout.heads and _MEETING_NOTES.fullmatch(rows[place].text)
    ]
    if not found or len({rows[place].text.casefold() for place in found}) < len(found):  # in each part of a meeting
        return
    sizes = [word_count(row.text) for row in rows]
    below = min((place for place in layout.heads if place > found[-1]), default=found[-1])
    is_below = below > found[-1] and not any(row.mark == "#" for row in rows[found[-1] + 1 : below])
    if is_below and sum(sizes[found[-1] :]) < _MAX_NOTES_SHARE * sum(sizes):
        layout.leftovers.append(rows[below].text)


def mark_sounds(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds rows such as `SFX:(bells)`, a word for sounds and a note in brackets, to the notes."""
    for place in range(min(layout.heads) + 1, len(rows)):
        match = _SOUND.fullmatch(rows[place].text) if place not in layout.heads else None
        if match and is_annotation(key_of(match["label"])):
            layout.notes[place] = "sound"


def mark_last_rows(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds what follows the last turn to the notes if it has the signs of a publisher's lines, else to the leftovers: the first
    blank line within a turn is in the last one."""
    places = sorted(layout.heads)
    if len(places) < _MIN_TURNS:
        return
    credits = list(takewhile(lambda place: _is_credit(rows[place].text), range(len(rows) - 1, places[-1], -1)))
    if credits and (is_rule(rows[credits[-1]].text) or all(_is_known_field(rows[place].text) for place in credits)):
        layout.notes |= dict.fromkeys(credits, "after the last turn")
    ends = [*places[1:], len(rows)]
    (usual, _), *_ = Counter(end - place for place, end in zip(places, ends, strict=True)).most_common(1)
    usual = 0 if any(row.after_blank for row in rows[1:]) else usual
    blanks = [_first_blank(layout, rows, place, end, usual) for place, end in zip(places, ends, strict=True)]
    num_inner = sum(blank is not None for blank in blanks[:-1])
    begin = blanks[-1]
    if begin is None:
        return
    is_habit = num_inner <= _MAX_INNER_SHARE * len(places)
    after = [place for place in range(begin if is_habit else len(rows) - 1, len(rows)) if place not in layout.notes]
    texts = [rows[place].text for place in after]
    are_credits = all(map(_is_credit, texts)) and (is_habit or not any(map(_VALUE.search, texts)))
    if (
        are_credits
        or any((_PUBLISHER if is_habit else _RIGHTS).search(rows[place].text) for place in after)
        or (num_inner == 0 and after and _is_document(texts))
    ):
        layout.notes |= dict.fromkeys(after, "after the last turn")
    elif (num_inner == 0 and after) or any(
        "://" in rows[place].text or _is_credit(rows[place].text) for place in after
    ):
        layout.leftovers += [rows[place].text for place in after]


def _is_document(texts: Sequence[str]) -> bool:
    """Whether a title and three or more headings with a colon, or numbered lines with others below, show that the texts are notes
    about a talk."""
    headings = [text for text in texts if text.endswith((":", "：")) and len(text.split()) <= _MAX_LOOSE_WORDS]
    numbered = [text for text in texts if _NUMBERED_LINE.match(text)]
    is_titled = _is_loose(texts[0].rstrip(":： "))
    is_spoken = not headings and len(numbered) == len(texts) - 1
    return is_titled and not is_spoken and len(headings) + len(numbered) >= _MIN_DOCUMENT_LINES


def _is_credit(text: str) -> bool:
    """Whether the row is a rule or has the shape of a header field, such as `Music: Ann Lee`."""
    field = field_of(text)
    return is_rule(text) or (field is not None and bool(field[1]) and len(field[0].split()) <= _MAX_KEY_WORDS)


def _is_known_field(text: str) -> bool:
    field = field_of(text)
    return is_rule(text) or (field is not None and is_known_key(field[0]))


def _first_blank(layout: Layout, rows: Sequence[Row], place: int, end: int, usual: int) -> int | None:
    """Returns the first row of a turn that follows a blank line within its words; rows in brackets are left out.

    If no blank lines separate rows, as on pages, it is the first row after the usual number of rows; else `usual` is 0.
    """
    if usual:
        return place + usual if end - place > usual else None
    for row in range(place + 1, end):
        if (
            rows[row].after_blank
            and not _is_below_name(layout, rows, row)
            and not _NOTE.fullmatch(rows[row].text)
            and row not in layout.notes
            and rows[row].mark != "#"
        ):
            return row
    return None


def drop_first_fields(layout: Layout, rows: Sequence[Row]) -> None:
    """Removes first labels before words that are no sentence, if other turns are sentences: a label that occurs once, as in a
    title with a colon, and the lines of a first block, as in a list of participants."""
    places = sorted(layout.heads)
    keys = [key_of(layout.heads[place].name or "") for place in places]
    roles = list(takewhile(lambda place: _is_list_line(layout, place, keys), places))
    if sum(bool(layout.heads[place].rest.strip()) for place in roles) > 1:
        layout.heads = {place: head for place, head in layout.heads.items() if place not in roles}
        places, keys = places[len(roles) :], keys[len(roles) :]
    if len(places) < _MIN_TURNS or any(head.time for head in layout.heads.values()):
        return
    ends = [rows[following - 1].text for following in [*places[1:], len(rows)]]
    if sum(map(ends_sentence, ends)) < 0.8 * len(ends):
        return
    num = next((number for number, end in enumerate(ends) if ends_sentence(end)), 0)
    starts = places[: num + 1]
    is_block = (
        num > 1
        and starts[-1] - starts[0] == num
        and [rows[place].after_blank for place in starts[1:]] == [False] * (num - 1) + [True]
    )
    for place, key in zip(places[:num], keys, strict=False):
        if (keys.count(key) > 1 and not is_block) or is_role(key) or _may_be_first_turn(layout.heads[place]):
            return
        head = layout.heads.pop(place)
        is_said = len(head.rest.split()) > _MAX_TITLE_WORDS and ends_sentence(head.rest)
        if is_said and not is_known_key(head.name or ""):
            layout.leftovers.append(f"{head.name}: {head.rest}")


def _may_be_first_turn(head: Head) -> bool:
    """Whether words in lower case that are no description, as in `Ann: so what happened then`, follow one word."""
    words = head.rest.split()
    is_said = len(words) > _MIN_CAPITALS and words[0][0].islower() and not SPOKEN.isdisjoint(words)
    return (
        is_said
        and " " not in (head.name or "")
        and is_label(head.name or "")
        and not is_annotation(key_of(head.name or ""))
    )


def _is_list_line(layout: Layout, place: int, keys: Sequence[str]) -> bool:
    """Whether nothing, or another label, follows a label that occurs once, as in `Guest: Ann (a baker)`."""
    head = layout.heads[place]
    words = head.rest.casefold().replace("(", " ( ").replace(",", " ,").split()
    names = {" ".join(words[:num]) for num in range(1, _MAX_KEY_WORDS + 1)}
    return keys.count(key_of(head.name or "")) == 1 and not (words and names.isdisjoint(keys))


def _paragraphs(layout: Layout, rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Returns (first row, last row) of the paragraphs from the first turn on; a name alone is one with the words below it."""
    first = min(layout.heads)
    spaced = sum(rows[place].after_blank for place in layout.heads) >= 0.8 * len(layout.heads)
    if not spaced and len(layout.heads) < 0.8 * (len(rows) - first):
        return []
    starts = [
        place
        for place in range(first, len(rows))
        if place in layout.heads
        or ((rows[place].after_blank or not spaced) and not _is_below_name(layout, rows, place))
    ]
    return [(place, end - 1) for place, end in zip(starts, [*starts[1:], len(rows)], strict=True)]


def _is_below_name(layout: Layout, rows: Sequence[Row], place: int) -> bool:
    above = place - 1
    while above in layout.used:
        above -= 1
    return above in layout.heads and not layout.heads[above].rest.strip()


def _is_loose(text: str) -> bool:
    """Whether the row is short, starts as a title does and does not end as a sentence does."""
    return (
        len(text.split()) <= _MAX_LOOSE_WORDS
        and not text[0].islower()
        and not _SENTENCE.search(text)
        and not ends_sentence(text)
    )


def notes_between(layout: Layout, rows: Sequence[Row]) -> dict[int, str]:
    """Returns the rows between turns that are no speech: titles such as `Chapter 3: The bell`, a time and a few words alone
    before a turn, and lines of a chat with a date and no name."""
    is_chat = 2 * sum(head.is_dated and head.name is not None for head in layout.heads.values()) > len(layout.heads)
    notes: dict[int, str] = {}
    for place in range(min(layout.heads) + 1, len(rows)):
        row, time = rows[place], time_head(rows[place].text)
        if place in layout.heads:
            continue
        if time is None:
            if _is_numbered_title(row.text) and not any(map(_is_numbered_title, _neighbors(rows, place))):
                notes[place] = "title of a chapter"
        elif is_chat and time.is_dated:
            notes[place] = "message of the chat program"
        elif is_title(time) and row.after_blank and place + 1 in layout.heads and rows[place + 1].after_blank:
            notes[place] = "title of a chapter"
    return notes


def _neighbors(rows: Sequence[Row], place: int) -> list[str]:
    return [row.text for row in (*rows[place - 1 : place], *rows[place + 1 : place + 2])]


def _is_numbered_title(text: str) -> bool:
    match = _NUMBERED_TITLE.match(text)
    is_short = len(text.split()) <= _MAX_TITLE_WORDS and not ends_sentence(text.removesuffix(":"))
    return match is not None and match[1].casefold() in NUMBERED and is_short
