"""Every line read in every style that it allows: the candidates for the starts of turns, by style."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from midthought.memory.formats.header_fields import is_known_key, is_role_key
from midthought.memory.formats.line_heads import TIMED_STYLES, Head, heads_of, is_label, name_alone, time_head
from midthought.memory.formats.reading import name_of
from midthought.memory.formats.scripts import ends_sentence, is_role, looks_like_name
from midthought.memory.formats.titled_names import STYLE as TITLED
from midthought.memory.formats.titled_names import titled_names
from midthought.memory.formats.word_lists import ANNOTATIONS, NUMBER_WORDS, NUMBERED

WEAK = frozenset(
    {
        "name:",
        "name —",
        "name\t",
        "[name]:",
        "[name]",
        "name",
        "name time text",
        "time name",
        "time [name]",
        "name below",
    }
)
"""Styles that ordinary sentences and notes have, too."""
_NUMBER = re.compile(r"\d\.\d{1,3}$")
"""End of labels such as `Decision 80.1`."""
_URL = re.compile(r"\s*(?:\[[^\[\]]{1,99}\]\(|<)?https?://\S+\s*")
"""An address, or a link in Markdown."""
_BARRED_LABEL = re.compile(r"(?P<name>[^\s:|][^:|]{0,40}\|[^:|]{1,40}?):\s(?P<rest>.*)", re.DOTALL)
"""A bold label such as `Ann Lee | Bell Works:`."""
ODD = "odd "
"""Mark of a style's recurring labels that do not have the shape of names."""
_WITH_INITIALS = re.compile(r"[^():.!?]{2,40} \([A-Z]{2,4}\)")
_INNER_BRACKET = re.compile(r"[^\W\d_],? \[([^\[\]:]{1,40})\] [^\W\d_]")
_MAX_ODD_WORDS = 4
_MIN_PHONE_DIGITS = 7


class Row(NamedTuple):
    """A line that is not empty."""

    number: int
    text: str
    after_blank: bool
    mark: str = ""
    """`bold` if the start of the line is, `#` for a heading, `>>` for a change of speaker, `code` for a line that starts no
    turn."""
    num_bold: int = 0
    """Number of letters up to the end of the bold part."""


@dataclass
class Layout:
    """Where turns start. `heads` has, by the index of the row, the head that was chosen."""

    style: str = ""
    heads: dict[int, Head] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    """Rows that are part of the head before them."""
    notes: dict[int, str] = field(default_factory=dict)
    """Rows between turns that are no speech, such as titles of chapters, with the reason."""
    fields: tuple[tuple[str, str], ...] = ()
    """Labels that were replaced by a shorter one of the same speaker."""
    leftovers: list[str] = field(default_factory=list)
    """Rows that are read as parts of turns, though the text's habit shows that they may be none."""
    confidence: float = 0.0
    doubts: list[str] = field(default_factory=list)

    def doubt(self, sentence: str, cost: float) -> None:
        """Adds a doubt that lowers the confidence by `cost`."""
        self.doubts.append(sentence)
        self.confidence = max(0.05, round(self.confidence - cost, 3))


@lru_cache(maxsize=1 << 14)  # labels recur
def key_of(name: str) -> str:
    """Returns a label for comparison."""
    return name_of(name).casefold()


def candidates_of(rows: Sequence[Row]) -> dict[str, dict[int, Head]]:
    """Returns by style the heads, by row."""
    found: dict[str, dict[int, Head]] = defaultdict(dict)
    odd: dict[str, dict[int, Head]] = defaultdict(dict)
    num_blank = sum(row.after_blank for row in rows[1:])
    same_spacing = num_blank in (0, len(rows) - 1)  # blank lines separate nothing, or every line
    alone = [
        name_alone(row.text, any_name=row.mark == "#" or row.num_bold == len(row.text)) if row.mark != "code" else None
        for row in rows
    ]
    times = [time_head(row.text) if row.mark != "code" else None for row in rows]
    for place, row in enumerate(rows):
        if row.mark == "code":
            continue
        prefix = f"{row.mark} " if row.mark else ""
        next_is_timed = place + 1 < len(rows) and times[place + 1] is not None
        heads = [
            head for head in heads_of(row.text, any_name=True) if _is_bold(row, head) and not _URL.fullmatch(head.rest)
        ]
        if not heads and 0 < row.num_bold < len(row.text):  # `**[00:01] Ann** text`
            heads = [
                head._replace(rest=row.text[row.num_bold :])
                for head in heads_of(row.text[: row.num_bold])
                if head.style == "time name"
            ]
        if (
            not heads
            and row.num_bold
            and (label := _BARRED_LABEL.match(row.text))
            and _ends_bold(row, label.end("name"))
        ):
            heads = [Head("name:", label["name"], None, label["rest"])]
        for head in heads:
            if head.style == "time name" and next_is_timed and not head.rest.strip():
                continue  # a line of few words, as the next one
            is_usual = head.style == "<name>" or row.num_bold > 0 or is_label(head.name or "")
            (found if is_usual else odd)[prefix + head.style][place] = head
        follower = rows[place + 1] if place + 1 < len(rows) else None
        name = alone[place]
        if name is None:
            time = times[place]
            has_words = place + 2 < len(rows) and times[place + 2] is None  # else: the line after a time is speech
            name = alone[place + 1] or _with_colon(follower) if follower else None
            if time and not time.rest.strip() and name and has_words:
                found["time / name"][place] = Head("time / name", name, time.time, "")
            continue
        if follower is None:
            continue
        time = times[place + 1]
        is_timed = time is not None and not time.rest.strip()
        alternate = place + 3 < len(rows) and times[place + 3] is not None  # a line and a time in turn: no names
        if time and is_timed and not alternate:
            found["name / time"][place] = Head("name / time", name, time.time, "")
        above = found["name below"].get(place - 1)
        is_below = (place == 0 or not row.after_blank) and not (above and above.style == "name / role")
        after = _after_role(rows, alone, place)
        if is_below and not row.mark and after < len(rows) and rows[after].after_blank:
            found["name below"][place] = Head("name / role" if after > place + 1 else "name", name, None, "")
        if row.mark or (not is_timed and (same_spacing or (row.after_blank and not follower.after_blank))):
            found[prefix + "name"][place] = Head("name", name, None, "")
    _remove_sounds(found, rows)
    _remove_sounds(odd, rows)
    _remove_items(found)
    _remove_items(odd)
    if titled := titled_names([row.text for row in rows], alone):
        found[TITLED] = titled
    for style, others in odd.items():
        _add_recurring(found, style, others)
        counts = Counter(key_of(head.name or "") for head in others.values())
        found[ODD + style] = {
            place: head
            for place, head in others.items()
            if counts[key_of(head.name or "")] > 1 and any(map(str.isalpha, head.name or ""))
        }
    return found


def _remove_sounds(found: dict[str, dict[int, Head]], rows: Sequence[Row]) -> None:
    """Removes labels in brackets that are within sentences at least as often as at a start, such as `[music]`."""
    styles = [style for style in found if bare_style(style) == "[name]"]
    inner = Counter(key_of(name) for row in rows for name in _INNER_BRACKET.findall(row.text)) if styles else Counter()
    for style in styles if inner else ():
        starts = Counter(key_of(head.name or "") for head in found[style].values())
        sounds = {key for key, num in inner.items() if num >= starts[key]}
        found[style] = {place: head for place, head in found[style].items() if key_of(head.name or "") not in sounds}


def _remove_items(found: dict[str, dict[int, Head]]) -> None:
    """Removes number words that stand before a colon once, as in a list that somebody reads out; a speaker recurs."""
    for style, heads in found.items():
        keys = Counter(key_of(head.name or "") for head in heads.values())
        if items := {key for key in keys.keys() & NUMBER_WORDS if keys[key] == 1}:
            found[style] = {place: head for place, head in heads.items() if key_of(head.name or "") not in items}


def bold_starts(rows: Sequence[Row]) -> dict[int, Head]:
    """Returns labels that are bold and have no sign after them, as in `**Ann Lee** text`, if they recur and start most
    paragraphs."""
    bold = {
        place: row.text[: row.num_bold]
        for place, row in enumerate(rows)
        if 0 < row.num_bold < len(row.text) and row.text[row.num_bold] == " " and row.mark == "bold"
    }
    stop = "." if all(name.endswith(".") for name in bold.values()) else ""
    heads = {
        place: Head("[name]", name, None, rows[place].text[rows[place].num_bold :])
        for place, start in bold.items()
        if is_label(name := start.removesuffix(stop)) and name[-1] not in ":："
    }
    counts = Counter(key_of(head.name or "") for head in heads.values())
    num_usual = sum(count for count in counts.values() if count > 1)
    num_paragraphs = sum(row.after_blank and row.mark != "#" for row in rows[min(heads, default=0) :])
    is_usual = num_usual >= max(4, 0.5 * num_paragraphs, 0.8 * len(heads))
    return heads if is_usual and len(counts) > 1 else {}


def _after_role(rows: Sequence[Row], alone: Sequence[str | None], place: int) -> int:
    """Returns the row after a name alone and, if there is one, the role below it, as in `COOPER`, `MODERATOR`."""
    follower = alone[place + 1]
    is_role_line = follower is not None and is_role(follower) and not rows[place + 1].after_blank
    return place + 1 + is_role_line


def _add_recurring(found: dict[str, dict[int, Head]], style: str, odd: dict[int, Head]) -> None:
    """Adds labels without the shape of a name, such as `qx()`, to a style with times or brackets if they recur."""
    if bare_style(style) not in TIMED_STYLES - WEAK:
        return
    counts = Counter(key_of(head.name or "") for head in odd.values())
    known = sum(counts.values()) + len(found[style])
    for place, head in odd.items():
        key = key_of(head.name or "")
        is_phone = sum(map(str.isdigit, key)) >= _MIN_PHONE_DIGITS
        is_once = known > 4 and (is_phone or (len(key.split()) < 3 and not continues_sentence(head)))
        is_usual = counts[key] > 1 or is_once
        if len(key.split()) <= _MAX_ODD_WORDS and is_usual and (is_phone or any(map(str.isalpha, key))):
            found[style][place] = head


def _with_colon(row: Row) -> str | None:
    """Returns the name on a row that has nothing else but a colon after it."""
    return name_alone(row.text[:-1]) if row.text.endswith((":", "：")) and row.mark != "code" else None


def continues_sentence(head: Head) -> bool:
    """Whether words without the shape of a name stand before a colon and words in lower case, as in `For example: the bell`."""
    name = head.name or ""
    return " " in name and head.rest[:1].islower() and not is_label(name)


@lru_cache(maxsize=8192)  # labels recur
def is_annotation(key: str) -> bool:
    """Whether the label is that of a note, a numbered item or a header field."""
    first = key.split()[0] if key else ""
    return (
        key in ANNOTATIONS
        or bool(_NUMBER.search(key))
        or key.endswith((" by", " present"))
        or (is_known_key(key) and not is_role_key(key))
        or (first in NUMBERED and key != first)
    )


def is_name_list(text: str) -> bool:
    """Whether the text is a full name, as in `Presenter: Ann Lee (AL)`, not speech."""
    parts = re.split(r",| and |&", text)
    names = [name.split("(")[0].strip() for name in parts]
    num = sum(
        bool(_WITH_INITIALS.fullmatch(part.strip())) or (looks_like_name(name) and not ends_sentence(name))
        for part, name in zip(parts, names, strict=True)
    )
    return num >= 0.8 * len(names) and " " in names[0]


def bare_style(style: str) -> str:
    """Returns the style without the mark of its rows."""
    return style.removeprefix("bold ").removeprefix("# ").removeprefix(">> ")


def _ends_bold(row: Row, end: int) -> bool:
    """Whether the bold part ends here, or after one sign."""
    return end <= row.num_bold <= end + 1


def _is_bold(row: Row, head: Head) -> bool:
    """Whether a row without a bold start, or exactly the bold part of it, has the head."""
    if not row.num_bold:
        return True
    ends = len(row.text) - len(head.rest) >= row.num_bold
    return ends and (head.name or "").strip() in row.text[: row.num_bold]


def in_order(heads: Iterable[Head]) -> float:
    """Returns `share_in_order` of the heads' times, except times of the day with a date."""
    return share_in_order([head.time for head in heads if head.time and not head.is_dated])


def share_in_order(times: Sequence[str]) -> float:
    """Returns the share of `HH:MM:SS` times that are not before the previous one; 1 if there are fewer than two."""
    pairs = list(pairwise(times))
    return sum(before <= after for before, after in pairs) / len(pairs) if pairs else 1.0
