"""Signs that lines of text were misunderstood: each lowers the confidence and is reported as a sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import regex

from midthought.memory.formats.header_fields import is_known_key, is_role_key
from midthought.memory.formats.label_doubts import HALVES, doubtful_labels
from midthought.memory.formats.line_candidates import (
    ODD,
    WEAK,
    Layout,
    Row,
    bare_style,
    continues_sentence,
    in_order,
    is_annotation,
    is_name_list,
    key_of,
)
from midthought.memory.formats.line_heads import TIMED_STYLES, Head, is_exclamation, is_label
from midthought.memory.formats.notations import Notation
from midthought.memory.formats.reading import name_of
from midthought.memory.formats.scripts import ends_sentence, is_role, is_unspaced, word_count
from midthought.memory.formats.word_lists import NUMBER_WORDS

LIKE_TURNS = "read as text, not as speakers:"
_MAX_OTHER_SHARE = 0.01
"""Share of lines that start like turns and were read as text, of the turns, from which on a file is doubtful."""
_TIME_INSIDE = re.compile(r"\d{1,2}:\d{1,2}(?::\d|\b)|.{0,30}-->")
_MAX_QUESTIONS_SHARE = 0.7
_ENDS = (".\n", "!\n", "?\n", "…\n", "、", "،")
"""Ends of short lines that are whole sentences, such as `Okay.`, and commas after words such as `however`."""
_NUMBERED_LINE = re.compile(r"\(?\d{1,2}(?:[.)](?:\s|-)|[、．])")
_MAX_NUMBERED_SHARE = 0.3
_SPAN = re.compile(r"\W{0,3}\d{1,3}:\d{2}(?::\d{2})?\s?(?:[-–—]|a|to)\s?\d{1,3}:\d{2}")
_MAX_TIMED_SHARE = 0.1
_NOTE_LINE = re.compile(r"[^.!?:…]{1,60}\s[-–—]\s[^.!?…]{1,120}[^.!?…,]|[^.!?…]{1,120}:")
"""A line such as `Pause – the stop sign` or `Number of columns:`."""
_MIN_NOTES = 6
_MAX_NOTES_SHARE = 0.3
_MIN_LIST_ROWS = 20
_MIN_WORDS_PER_LINE = 2.0
_MIN_ROWS = 4
_MIN_NAMES = 6
_MIN_NAMES_SHARE = 0.1
_MOST = 0.8
_SHORT_WORDS = 3
_TITLED_START = regex.compile(r"(\p{Lu}[\p{L}.'’-]*(?: \p{Lu}[\p{L}.'’-]*){1,3}), \p{Lu}")
"""A name and the start of a title, as in `Ann Lee, Head of the Bells`."""
_MIN_TITLED = 3
_SPOKEN_DASH = re.compile(r"[–—―]\s?\S|- ")
_MOST_DASHED = 0.6
"""Of the rows at which a turn may start: a sentence may end within a turn, too."""
_MAX_FOLLOWED_SHARE = 0.3
_TOO_SHORT = 2.5
"""Words per line with a time, below which the lines have labels or codes, not speech."""


def judge_named(
    layout: Layout, rows: Sequence[Row], candidates: dict[str, dict[int, Head]], num_words: Sequence[int]
) -> None:
    """Sets the confidence of turns with names, and adds doubts about times, labels and lines that start like turns."""
    places = sorted(layout.heads)
    labels = Counter(key_of(layout.heads[place].name or "") for place in places)
    times = [layout.heads[place].time for place in places]
    total = sum(num_words)
    layout.confidence = 0.98 if any(times) else 0.93
    order = in_order(layout.heads[place] for place in places)
    if order < 0.98:
        layout.doubt(f"{1 - order:.0%} of the times go back", min(0.4, 0.05 + 2 * (1 - order)))
    is_long = len(places) > 3 or total > 40 * len(places) > 40
    if is_long and len(labels) == len(places) and not all(map(is_role, labels)):
        layout.doubt("every speaker label occurs once", 0.3)
    elif len(labels) == 1 and len(places) > 2 and not any(times) and not _is_only_speaker(layout, rows):
        layout.doubt(f"all turns have one label: {next(iter(labels))!r}", 0.3)
    elif len(labels) > 25 and len(labels) > len(places) / 3:
        layout.doubt(f"{len(labels)} speaker labels for {len(places)} turns", 0.3)
    longest = max(sum(num_words[start:end]) for start, end in pairwise([*places, len(rows)]))
    if total > 400 and len(places) > 2 and longest > 0.6 * total:
        layout.doubt(f"one turn has {longest / total:.0%} of the words", 0.3)
    if len(places) == 1 and total > 200:
        is_usual = len(layout.heads[places[0]].rest.split()) > 4 and (is_role(next(iter(labels))) or bool(times[0]))
        layout.doubt("there is one turn only", 0.2 if is_usual else 0.3)
    alike = {*candidates.get(layout.style, ()), *candidates.get(ODD + layout.style, ())}
    sure = [
        style for style in candidates if bare_style(style) in {"name:"} | TIMED_STYLES - WEAK and style != layout.style
    ]
    others = {
        place: name_of(head.name or "")
        for style in (layout.style, ODD + layout.style, *sure)
        for place, head in candidates.get(style, {}).items()
        if place not in layout.heads
        and place not in layout.notes
        and place > places[0]
        and not is_exclamation(head.name or "x")
        and not (place + 1 in layout.heads and not head.rest.strip())  # a heading with a colon
        and not _is_short_field(head)
        and not (continues_sentence(head) or key_of(head.name or "") in NUMBER_WORDS)
        and not (all(times) and _has_stray_colon(head))
        if place - 1 not in layout.heads or layout.heads[place - 1].rest.strip()  # else: said by that speaker
        if not (is_role_key(key_of(head.name or "")) and is_name_list(head.rest))
    }
    if odd := doubtful_labels(layout, rows):
        layout.doubt(f"labels that may be no speakers: {', '.join(map(repr, odd[:3]))}", 0.3)
    known = {rows[place].text for place in layout.notes}
    if left := [text for text in layout.leftovers if text not in known]:
        layout.doubt(f"may be no part of a turn: {left[0][:40]!r}", 0.3)
    if others:
        names = sorted(set(others.values()))
        what = f"{LIKE_TURNS} {', '.join(map(repr, names[:5]))}{' and more' if len(names) > 5 else ''}"
        is_strict = layout.style == "bold name" or layout.style in TIMED_STYLES - WEAK
        upper = sum((head.name or "").isupper() for head in layout.heads.values()) > 0.8 * len(places)
        is_alike = (is_strict and alike & others.keys()) or (upper and any(name.isupper() for name in names))
        layout.doubt(what, 0.3 if is_alike or len(others) >= _MAX_OTHER_SHARE * len(places) else 0.05)


def _has_stray_colon(head: Head) -> bool:
    """Whether a recognizer may have written the colon, as in `Then: yes`: words in lower case follow, and it is no note."""
    name = head.name or ""
    is_word = not name.isupper() or len(name) == 1
    return not head.time and head.rest[:1].islower() and is_word and not is_annotation(key_of(name))


def _is_short_field(head: Head) -> bool:
    """Whether the row is a field with a short value, such as `Duration: 0 minutes`."""
    is_short = 0 < len(head.rest.split()) <= _SHORT_WORDS and not ends_sentence(head.rest)
    return is_short and is_known_key(head.name or "") and not is_role_key(head.name or "")


def _is_only_speaker(layout: Layout, rows: Sequence[Row]) -> bool:
    """Whether the only label is a speaker's: a role, or a name of several words or in most paragraphs, from the first line on."""
    name = name_of(layout.heads[min(layout.heads)].name or "")
    is_usual = len(layout.heads) >= _MOST * sum(row.after_blank for row in rows)
    if name.casefold() in HALVES:
        return False
    return is_role(name) or (min(layout.heads) == 0 and (" " in name or is_usual))


def judge_inner_lines(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds a doubt if lines within turns start with times that were read as words, or with numbers as a list does."""
    first, taken = min(layout.heads), {*layout.heads, *layout.used, *layout.notes}
    inside = [row.text for place, row in enumerate(rows) if place > first and place not in taken]
    found = [text for text in inside if _TIME_INSIDE.match(text)]
    if len(found) > max(1, 0.02 * len(layout.heads)):
        layout.doubt(f"{len(found)} lines with a time were read as words: {found[0][:40]!r}", 0.3)
    numbered: list[str] = []
    is_said = False  # after a row such as `Three phases:`
    for place, row in enumerate(rows):
        if not _NUMBERED_LINE.match(row.text):
            is_said = row.text.endswith(":")
        elif place > first and place not in taken and not is_said:
            numbered.append(row.text)
    if len(numbered) > max(3, 0.15 * len(layout.heads)):
        layout.doubt(f"{len(numbered)} numbered lines were read as speech: {numbered[0][:40]!r}", 0.3)


def judge_unnamed(layout: Layout, rows: Sequence[Row], candidates: dict[str, dict[int, Head]]) -> None:
    """Adds doubts about text without names: lines that start like turns, or alike, or have almost no words."""
    if not layout.style:
        layout.confidence = layout.confidence or 0.8
    counts: Counter[str] = Counter()
    for style, found in candidates.items():
        if style in ("name", "bold name") or style.startswith("# "):
            continue
        own = Counter(name_of(head.name or "") for head in found.values())
        are_titles = len(own) == len(found) >= _MIN_ROWS and not any(head.rest.strip() for head in found.values())
        if style == "time name" and layout.style == "time" and are_titles:  # of chapters
            continue
        if bare_style(style.removeprefix(ODD)) == "name —":  # not `If I — if I could`, `For example — It is a bell.`
            for head in found.values():
                key = name_of(head.name or "")
                own[key] -= head.rest[:1].islower() or (own[key] == 1 and ends_sentence(head.rest))
        counts += own
    said = [layout.heads[place].rest if place in layout.heads else row.text for place, row in enumerate(rows)]
    if labels := _recurring_short_lines(rows):
        layout.doubt(f"short lines recur, as names do: {', '.join(map(repr, labels[:3]))}", 0.3)
    starts = [
        text
        for place, text in enumerate(said)
        if place == 0 or place in layout.heads or rows[place].after_blank or ends_sentence(said[place - 1])
    ]
    dashes = sum(bool(_SPOKEN_DASH.match(text)) for text in starts)
    if dashes >= max(_MIN_ROWS, _MOST_DASHED * len(starts)):
        layout.doubt(f"{dashes} paragraphs start with a dash, as turns of people who are not named do", 0.3)
    num_words = sum(map(word_count, said))
    if layout.heads and len(rows) > _MIN_ROWS and num_words < _TOO_SHORT * len(layout.heads):
        layout.doubt(f"its lines with times have {num_words / len(rows):.1f} words on average", 0.3)
    titled = Counter(match[1] for text in said if (match := _TITLED_START.match(text)))
    titled = Counter({name: num for name, num in titled.items() if num >= _MIN_TITLED})
    if len(titled) > 1:
        names = ", ".join(repr(name) for name, _ in titled.most_common(3))
        layout.doubt(f"names and titles start many lines: {names}", 0.3)
    bold = [row.text for row in rows if row.num_bold == len(row.text) > 0]
    asked = [text for text in bold if text.endswith("?")]
    if len(asked) >= _MIN_ROWS and (names_alone := [text for text in bold if " " in text and is_label(text)]):
        layout.doubt(f"a name and questions are bold, as turns are: {names_alone[0][:40]!r}", 0.3)
    named = {
        name: count
        for name, count in counts.items()
        if not is_annotation(name.casefold())
        and (count > 1 or name != name.casefold())  # once, without capitals: words
    }
    first = next((row.text for row in rows if row.mark != "#"), "")
    if num := sum(named.values()):
        names = ", ".join(repr(name) for name, _ in Counter(named).most_common(3))
        is_first = any(first.startswith(name) for name in named if name.isupper())
        cost = 0.3 if is_first or num >= max(2, 0.02 * len(rows)) else 0.05
        layout.doubt(f"lines that start like turns were read as text: {names}", cost)


def judge_notation(layout: Layout, notation: Notation | None, num_rows: int) -> None:
    """Adds a doubt about text without names if a few names stand before it in a notation that is not certain."""
    is_named = notation is not None and 2 * notation.num_names >= len(notation.labels)
    if not notation or not is_named or notation.sep in _ENDS or _are_interjections(notation):
        return
    followed = sum(place + 1 in notation.heads for place in notation.heads)  # a name stands above words, not names
    if notation.sep == "\n" and followed > _MAX_FOLLOWED_SHARE * len(notation.heads):
        return
    if notation.num_named >= max(_MIN_NAMES, _MIN_NAMES_SHARE * num_rows):
        names = ", ".join(repr(name) for name, _ in notation.labels.most_common(3))
        layout.doubt(f"many lines start alike: {names}", 0.3)


def _are_interjections(notation: Notation) -> bool:
    """Whether the labels are words before a comma in a script without capitals, such as `是的，`."""
    return notation.sep.strip() in (",", "、") and all(all(map(is_unspaced, label)) for label in notation.labels)


def judge_list(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds doubts about lines without names that are numbered, or have one or two words, as in a list."""
    said = [layout.heads[place].rest if place in layout.heads else row.text for place, row in enumerate(rows)]
    num_words = sum(map(word_count, said))
    if not layout.heads and len(rows) >= _MIN_LIST_ROWS and num_words < _MIN_WORDS_PER_LINE * len(rows):
        layout.doubt(f"its {len(rows)} lines have {num_words / len(rows):.1f} words on average, as in a list", 0.3)
    notes = [text for text in said if _NOTE_LINE.fullmatch(text)]
    if len(notes) >= max(_MIN_NOTES, _MAX_NOTES_SHARE * len(said)):
        layout.doubt(
            f"{len(notes)} of {len(said)} lines are headings or terms with a dash, as in notes: {notes[0][:40]!r}", 0.3
        )
    num_questions = sum(text.rstrip()[-1:] in ("?", "？") for text in said)
    if num_questions > max(_MIN_ROWS, _MAX_QUESTIONS_SHARE * len(rows)):
        layout.doubt(f"{num_questions} of its {len(rows)} lines are questions, as in a list of them", 0.3)
    numbered = [text for text in said if _NUMBERED_LINE.match(text)]
    timed = [row.text for row in rows if _SPAN.match(row.text)] if not layout.heads else []
    if len(timed) > max(2, _MAX_TIMED_SHARE * len(rows)):
        layout.doubt(f"{len(timed)} lines with a time were read as words: {timed[0][:40]!r}", 0.3)
    if len(numbered) > max(2, _MAX_NUMBERED_SHARE * len(rows)):
        layout.doubt(f"{len(numbered)} of {len(rows)} lines are numbered, as in a list: {numbered[0][:40]!r}", 0.3)


def _recurring_short_lines(rows: Sequence[Row]) -> list[str]:
    """Returns short lines without the end of a sentence that recur, if they are a tenth of the lines or more."""
    counts = Counter(
        row.text
        for row in rows
        if len(row.text.split()) <= _SHORT_WORDS and row.text[:1].isupper() and not ends_sentence(row.text)
    )
    recurring = {text: count for text, count in counts.items() if count > 1}
    num = sum(recurring.values())
    return sorted(recurring, key=lambda text: -recurring[text]) if num >= max(3, 0.1 * len(rows)) else []
