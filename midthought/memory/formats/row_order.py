"""Brings the lines of some layouts into the usual order before they are read: without line numbers, one turn per line, names
before the words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import regex

from midthought.memory.formats.line_candidates import Row, key_of, share_in_order
from midthought.memory.formats.line_heads import TITLES, is_label
from midthought.memory.formats.scripts import ends_sentence, folded
from midthought.memory.turns import CLOCK, clock_time

_LINE_NUMBER = regex.compile(r"(\d{1,5})[.)]?\s+(?=\S)")
_ATTRIBUTION = regex.compile(r"[—–―]\s{0,3}(?P<name>[^\s:.!?][^:!?]{0,50})")
_COLON = regex.compile(r":\s+(?=\S)")
_SENTENCE_START = regex.compile(
    r"(?:(?=\S)(?<=[.!?…。！？—–][\"'”’)\]]?\s+)|(?=\p{Lu})(?<=[.!?…。！？][\"'”’)\]]?))"  # blanks are read back once
    r"(?<!(?<!\p{L})(?<!(?<!\p{L})\p{Ll}{1,20}\s)\p{Lu}\.\s?)"
)
"""The start of a sentence, which no initial ends, as in `A.B.: Yes.`; `as vitamin C.` does."""
_TIMED_LABEL = regex.compile(rf"(?P<name>(?:\p{{Lu}}[\p{{L}}’'-]{{0,30}}\s){{1,3}})\s?{CLOCK}(?=\s+\S)")
_TITLE = regex.compile(rf"\W*{TITLES}\.\s*")
_VALUE = regex.compile(r"\[[a-z_]{1,20}=-?[\d.]{1,20}[a-z%]{0,2}\]\s*")
_VALUES = regex.compile(
    rf"(?=.{{0,80}}?\[[a-z_]{{1,20}}=)(?:{_VALUE.pattern}|\[[\d:.,]{{1,20}}s? ?-+> ?[\d:.,]{{1,20}}s?\]\s*)+"
)
_VALUE_KEY = regex.compile(r"\[([a-z_]{1,20})=")
_MIN_VALUE_ROWS = 4
_MIN_VALUE_SHARE = 0.9
_MIN_ATTRIBUTIONS = 3
_MIN_ROLLED = 12
_MIN_INNER_LABELS = 4
_MIN_INNER_SHARE = 0.9
_MAX_INNER_LABELS = 50
_MIN_FIRST_SHARE = 0.3
"""Of the rows, that labels start which may stand within a row, too."""
_MAX_LABEL_LETTERS = 60
_MIN_LONG_LETTERS = 1000
_MAX_CODE_LETTERS = 3
_MAX_REMARK_LETTERS = 300


def unrolled(rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Returns the rows without those that repeat the row before, and these, if they are most, as in text of roll-up captions."""
    again = [row for before, row in pairwise(rows) if row.text == before.text]
    if len(rows) < _MIN_ROLLED or 2 * len(again) < len(rows):
        return rows, ()
    return [row for place, row in enumerate(rows) if place == 0 or row.text != rows[place - 1].text], again


def in_usual_order(rows: Sequence[Row]) -> Sequence[Row]:
    """Returns the rows as most layouts have them. Takes time linear in the text's length."""
    return _names_first(_one_turn_per_row(_one_time_per_row(without_numbers(_without_values(rows)))))


def _without_values(rows: Sequence[Row]) -> Sequence[Row]:
    """Returns the rows without values such as `[rtf=0.19]` at their starts, if nearly all have the same, as in logs of
    recognizers."""
    found = [_VALUES.match(row.text) for row in rows]
    starts = Counter(tuple(_VALUE_KEY.findall(match[0])) for match in found if match)
    if len(rows) < _MIN_VALUE_ROWS or not starts or max(starts.values()) < _MIN_VALUE_SHARE * len(rows):
        return rows
    return [
        row._replace(text=_VALUE.sub("", match[0]) + row.text[match.end() :]) if match else row
        for row, match in zip(rows, found, strict=True)
    ]


def without_numbers(rows: Sequence[Row], share: float = 0.9) -> Sequence[Row]:
    """Returns the rows without their numbers, if this share of them has one that counts up, as the lines of a page do."""
    found = [_LINE_NUMBER.match(row.text) for row in rows]
    numbers = [int(match[1]) for match in found if match]
    steps = sum(after == before + 1 for before, after in pairwise(numbers))
    if len(rows) < 4 or len(numbers) < share * len(rows) or steps < 0.9 * (len(numbers) - 1):
        return rows
    return [
        row._replace(text=row.text[match.end() :]) if match and not row.num_bold else row
        for row, match in zip(rows, found, strict=True)
    ]


def _one_time_per_row(rows: Sequence[Row]) -> Sequence[Row]:
    """Splits long rows before labels with a time, such as `Ann Lee 0:11`, if these recur within them and their times go up."""
    long = [row.text for row in rows if len(row.text) > _MIN_LONG_LETTERS]
    counts = Counter(match["name"] for text in long for match in _TIMED_LABEL.finditer(text))
    usual = [name for name, count in counts.most_common(_MAX_INNER_LABELS) if count > 2]
    names = [name for name in usual if not any(name != other and name.endswith(other) for other in usual)]
    label = regex.compile(rf"(?:{'|'.join(map(regex.escape, names))})\s?(?P<time>{CLOCK})(?=\s+\S)")
    times = [clock_time(match["time"]) or "" for text in long for match in label.finditer(text) if names]
    if len(times) < max(len(rows), 2 * _MIN_INNER_LABELS) or share_in_order(times) < _MIN_INNER_SHARE:
        return rows
    parts: list[Row] = []
    for row in rows:
        starts = [0, *(at for match in label.finditer(row.text) for at in match.span()), len(row.text)]
        texts = [row.text[start:end].strip() for start, end in pairwise(starts)]
        parts += [
            row._replace(text=text, after_blank=number % 2 == 1 or (number == 0 and row.after_blank))
            for number, text in enumerate(texts)
            if text
        ]
    return parts


def _one_turn_per_row(rows: Sequence[Row]) -> Sequence[Row]:
    """Splits rows before labels at the starts of sentences, if at least two labels recur and rows have several of them, or one
    within and another one at the start; else before labels that start many rows."""
    places = [inner_labels(row.text) for row in rows]
    counts = Counter(key for found in places for _, key in found)
    recurring = {key for key, count in counts.most_common(_MAX_INNER_LABELS) if count > 1}
    num = sum(counts[key] for key in recurring)
    first = Counter(
        key_of(row.text.partition(":")[0]) for row in rows if recurring and ":" in row.text[:_MAX_LABEL_LETTERS]
    )
    has_two = len(recurring) > 1 or any(count > 1 for key, count in first.items() if key not in recurring)
    if recurring and has_two and num >= max(_MIN_INNER_LABELS, _MIN_INNER_SHARE * len(rows)):
        names = {
            regex.escape(folded(row.text)[place:].partition(":")[0])
            for row, found in zip(rows, places, strict=True)
            for place, key in found
            if key in recurring
        }
        before = r"[\s.!?…。！？\"'”’)\]]"
        label = regex.compile(rf"(?<={before})(?:{'|'.join(sorted(names))}):\s")
    elif known := _first_labels(rows):
        rows, label = _with_colons(rows, known), _inner_label(known)
    else:
        return rows
    parts: list[Row] = []
    for row in rows:
        starts = [0, *(match.start() for match in label.finditer(folded(row.text)))]
        for start, end in pairwise([*starts, len(row.text)]):
            parts.append(row._replace(text=row.text[start:end].strip(), after_blank=row.after_blank or start > 0))
    return [row for row in parts if row.text]


def _first_labels(rows: Sequence[Row]) -> list[str]:
    """Returns the labels with a colon that recur at the starts of rows, if they start many."""
    starts = Counter(folded(row.text[:_MAX_LABEL_LETTERS]).partition(":")[0] for row in rows)
    names = [name for name, count in starts.most_common(_MAX_INNER_LABELS) if count > 2 and is_label(name)]
    num = sum(row.text.startswith(tuple(f"{name}:" for name in names)) for row in rows)
    return names if len(names) > 1 and num >= _MIN_FIRST_SHARE * len(rows) else []


def _inner_label(names: Sequence[str]) -> regex.Pattern[str]:
    """Returns the pattern of these labels after the end of a sentence; of codes such as `E`, after a blank. A label in square
    brackets, and the last word of `E and L:` and `ANN LEE:`, start none."""
    ends = r"[.!?…。！？)\]\"”’]\s+"
    pattern = rf"(?<={ends})(?<!\b{TITLES}\.\s)(?:{'|'.join(map(regex.escape, sorted(names)))}):\s"
    if codes := "|".join(name for name in names if _is_code(name)):
        is_joined = rf"\b(?:{codes})(?:\s\p{{Ll}}{{1,3}}|\s?[,&/+])\s"
        is_named = r"\p{Lu}[\p{Lu}.'’-]+\s|^(?:\p{Lu}[\p{L}.'’-]*\s){1,4}"
        pattern += rf"|(?<=[\s\])])(?<!{is_joined}|{is_named})(?:{codes}):[\s\[]"
    return regex.compile(rf"\[[^\[\]]{{0,{_MAX_REMARK_LETTERS}}}\](*SKIP)(*FAIL)|{pattern}")


def _is_code(label: str) -> bool:
    return len(label) <= _MAX_CODE_LETTERS and label.isalpha() and label.isupper()


def _with_colons(rows: Sequence[Row], names: Sequence[str]) -> Sequence[Row]:
    """Returns the rows with a colon after labels in capitals without one, as in `Is it? WALKER It is.`, if all labels are in
    capitals."""
    long = [name for name in names if len(name) > _MAX_CODE_LETTERS and name.isupper()]
    if len(long) < len(names):
        return rows
    label = regex.compile(
        rf"(?:^|(?<=[.!?…][\"”)\]]?\s)(?<!\b{TITLES}\.\s))(?:{'|'.join(map(regex.escape, long))})"
        r"(?=\s[\"“‘']?[\p{Lu}\p{N}](?!\p{Lu}))"
    )
    starts = [place == 0 or row.after_blank or ends_sentence(rows[place - 1].text) for place, row in enumerate(rows)]
    return [
        row if row.num_bold else row._replace(text=label.sub(r"\g<0>:", row.text, pos=1 - is_start))
        for row, is_start in zip(rows, starts, strict=True)
    ]


def inner_labels(text: str) -> list[tuple[int, str]]:
    """Returns (place, key) of the labels that start a sentence within the text. Takes time linear in the text's length."""
    plain, found = folded(text), list[tuple[int, str]]()
    if ":" not in plain:
        return []
    before, title = 0, _TITLE.match(text)
    first = title.end() if title else -1  # `Mr.` at the start of the text ends no sentence
    for colon in _COLON.finditer(plain):
        begin = max(0, colon.start() - _MAX_LABEL_LETTERS, plain.rfind(":", before, colon.start()) + 1)
        before = colon.start()  # no label has a colon
        for start in _SENTENCE_START.finditer(plain, begin, colon.start()):
            if start.end() != first and is_label(name := text[start.end() : colon.start()]):
                found.append((start.end(), key_of(name)))
                break
    return found


def _names_first(rows: Sequence[Row]) -> Sequence[Row]:
    """Puts names such as `— Ann Lee`, which stand below their words, above them as `Ann Lee:`."""
    names = {
        place: match["name"].strip()
        for place, row in enumerate(rows)
        if (match := _ATTRIBUTION.fullmatch(row.text)) and is_label(match["name"])
        if place and (place + 1 == len(rows) or rows[place + 1].after_blank)
    }
    if len(names) < _MIN_ATTRIBUTIONS or len(rows) - 1 not in names or len(set(names.values())) == len(names):
        return rows
    ordered: list[Row] = []
    start = next((place for place in range(min(names) - 1, 0, -1) if rows[place].after_blank), 0)
    ordered += rows[:start]
    for place, name in names.items():
        ordered.append(rows[place]._replace(text=f"{name}:", after_blank=True, mark="", num_bold=0))
        ordered += [rows[start]._replace(after_blank=False), *rows[start + 1 : place]]
        start = place + 1
    return ordered
