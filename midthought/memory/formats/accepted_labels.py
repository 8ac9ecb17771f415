"""Which labels of a style start turns: labels that recur, have the shape of names or are at the starts of paragraphs. Notes,
lists and ordinary words are rejected."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from midthought.memory.formats.header_fields import is_role_key
from midthought.memory.formats.line_candidates import WEAK, Row, bare_style, is_annotation, is_name_list, key_of
from midthought.memory.formats.line_heads import TIMED_STYLES, Head, is_label, time_head
from midthought.memory.formats.scripts import ends_sentence, is_role, is_unspaced

NEEDS_RECURRENCE = (
    "name",
    "name below",
    "time name",
    "name time text",
    "[name]",
    "name —",
    "name\t",
)
"""Styles whose labels must recur."""
_MAX_PHRASES = 200
_REMARK = re.compile(r"\s\([^()a-z][^()]*\)$")
"""After a label, such as the name of a company; not `(singing)`."""
_QUOTES = ("“", "「", "『", "《", '"')
_MAX_LOWER_SHARE = 0.3
_ARTICLES = ("a", "an", "this", "that")
_RECURRING_ROLES = ("question", "answer")
"""Labels that are no annotations if they recur."""


def accepted_heads(
    rows: Sequence[Row], found: dict[int, Head], style: str, *, is_wrapped: bool = False
) -> dict[int, Head]:
    """Returns the heads whose labels the file supports. `is_wrapped`: blank lines stand within sentences, too."""
    bare = bare_style(style)
    keys = {place: key_of(head.name or "") for place, head in found.items()}
    counts = Counter(keys.values())
    is_weak = bare in WEAK and not (style.startswith("bold ") and bare != "name")
    rejected = {
        key
        for key in counts
        if is_annotation(key) and not (counts[key] > 1 and (bare in TIMED_STYLES or key in _RECURRING_ROLES))
    }
    if not is_weak:
        return {place: head for place, head in found.items() if keys[place] not in rejected}
    initials = {
        keys[place] for place, head in found.items() if (head.name or "").isupper() and len(head.name or "") < 5
    }
    if 2 * sum(counts[key] for key in initials) < len(found):
        initials = set()
    rejected |= listing_labels(found)
    following = [row.text for row in rows[1:]] + [""]
    rejected |= {
        keys[place]
        for place, head in found.items()
        if counts[keys[place]] == 1
        and (_are_names(head.rest.strip() or following[place]) or _introduces_quotation(keys[place], head))
    }
    lowered = _lowercase_words(rows, [key for key in counts if key not in initials])
    total = sum(count for key, count in counts.items() if key not in rejected)
    words = _ordinary_words(found, counts, lowered, total)
    most_have_labels = len(found) >= 0.5 * len(rows)
    rejected |= {key for key in words if key.split()[0] in _ARTICLES or not most_have_labels}
    recurring = {key for key, count in counts.items() if count > 1 and key not in rejected}
    if style == "bold name" and sum(counts[key] for key in recurring) >= 0.7 * len(found):
        shaped = {
            keys[place] for place, head in found.items() if is_label(head.name or "") and not lowered[keys[place]]
        }
        return {place: head for place, head in found.items() if keys[place] in recurring | (shaped - rejected)}
    if style.startswith("# ") and not recurring:
        return {}
    shapes = _shapes(found[place].name or "" for place, key in keys.items() if key in recurring)
    after_blank = [rows[place].after_blank for place, key in keys.items() if key in recurring]
    needs_blank = len(after_blank) > 3 and sum(after_blank) >= 0.95 * len(after_blank)
    is_explained = explains(rows, found, style)
    accepted: dict[int, Head] = {}
    for place, head in found.items():
        key, row = keys[place], rows[place]
        if key in rejected or (key in words and not accepted):
            continue
        starts = place == 0 or rows[place - 1].mark == "#" or ends_sentence(rows[place - 1].text)
        if key not in recurring and not is_explained:
            own = _shapes([head.name or ""])
            is_odd = bool(own and shapes) and not is_role(key) and own.isdisjoint(shapes)
            is_inside = needs_blank and not row.after_blank and rows[place - 1].mark != "#"
            is_start = starts or (row.after_blank and not is_wrapped)
            if (is_odd or is_inside or not is_start) and not is_role(key):
                continue
            if not recurring and bare in NEEDS_RECURRENCE:
                continue
        accepted[place] = head
    if bare != "name":
        return accepted
    # names one after another, and `Ann Lee - President`, are a list of those present
    silent = Counter(keys[p] for p in accepted if p + 1 in accepted or is_role("".join(following[p : p + 1])))
    return {
        place: head
        for place, head in accepted.items()
        if 2 * silent[keys[place]] <= counts[keys[place]]
        and (keys[place] in recurring or not any(keys[place].startswith(f"{key} - ") for key in recurring))
    }


def _ordinary_words(found: dict[int, Head], counts: Counter[str], lowered: Counter[str], total: int) -> set[str]:
    """Returns the rare labels that occur in lower case as often as they are labels, unless most labels are in capitals."""
    capitals = {key_of(head.name or "") for head in found.values() if (head.name or "").isupper()}
    if sum(counts[key] for key in capitals) < 0.8 * len(found):
        capitals = set()
    none_recurs = max(counts.values(), default=0) < 2
    return {
        key
        for key, count in counts.items()
        if (none_recurs or (count < 5 and count < 0.1 * total))
        and lowered[key] >= count
        and not is_role(key)
        and key not in capitals
    }


def _introduces_quotation(key: str, head: Head) -> bool:
    """Whether words, in a script without capitals, stand before what somebody says."""
    return head.rest.lstrip().startswith(_QUOTES) and all(map(is_unspaced, key))


def are_wrapped(rows: Sequence[Row]) -> bool:
    """Whether blank lines stand within sentences, too, as in text of captions: many lines after them start in lower case."""
    firsts = [row.text[:1] for row in rows if row.after_blank]
    return sum(map(str.islower, firsts)) > _MAX_LOWER_SHARE * len(firsts)


def listing_labels(found: dict[int, Head]) -> set[str]:
    """Returns the roles that stand before lists of names, such as `Presenter: Ann Lee`, if there are other labels."""
    keys = {place: key_of(head.name or "") for place, head in found.items()}
    counts = Counter(keys.values())
    values = Counter(
        keys[place] for place, head in found.items() if is_role_key(keys[place]) and is_name_list(head.rest)
    )
    return {key for key, num in values.items() if num >= 0.8 * counts[key] and len(counts) > 2}


def _are_names(text: str) -> bool:
    """Whether the text is a list of full names, as in `Remote: Ann Lee (AL), Bob Reece (BR)`."""
    return text.count(",") > 0 and text.count(" ") > 2 and is_name_list(text)


def _shapes(names: Iterable[str]) -> set[str]:
    """Returns whether names are in capitals or not; short ones such as `DHH` and roles say nothing."""
    return {
        "upper" if name.isupper() else "mixed"
        for name in (_REMARK.sub("", name) for name in names)
        if not is_role(name) and not (name.isupper() and len(name) < 5)
    }


def explains(rows: Sequence[Row], found: dict[int, Head], style: str) -> bool:
    """Whether nearly every unit of the text starts so: every paragraph, every bold line, every line with a time."""
    bare = bare_style(style)
    blanks = sum(row.after_blank for row in rows)
    if style != bare:
        units = sum(row.mark == rows[next(iter(found))].mark for row in rows)
    elif bare.startswith("time "):
        units = sum(time_head(row.text) is not None for row in rows)
    elif bare == "name" and blanks in (1, len(rows)):
        units = len(rows) // 2
    else:
        units = blanks if blanks > 1 else len(rows)
    return len(found) > 1 and len(found) >= 0.9 * units


def _lowercase_words(rows: Sequence[Row], keys: Sequence[str]) -> Counter[str]:
    """Counts how often labels occur in the text as ordinary words in lower case, which names do not."""
    wanted = {key for key in keys if key.isalpha()}
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(word for word in (each.strip(".,;:!?\"'()") for each in row.text.split()) if word in wanted)
    phrases = [key for key in keys if " " in key and key.replace(" ", "").isalpha()]
    text = "\n".join(row.text for row in rows) if phrases else ""
    counts.update({phrase: text.count(f" {phrase}") for phrase in phrases[:_MAX_PHRASES]})
    return counts
