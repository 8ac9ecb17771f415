"""Decides how the lines of a text name speakers and times: every style is a candidate, the whole file decides.

A line starts a turn only if the file supports it: labels recur, have the shape of names, stand where turns start; times do
not go back; one style explains the text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from midthought.memory.formats.header_fields import is_known_key, is_role_key
from midthought.memory.formats.line_heads import TIMED_STYLES, Head, heads_of, name_alone, time_head
from midthought.memory.formats.reading import name_of
from midthought.memory.formats.scripts import ends_sentence, is_role, looks_like_name
from midthought.memory.formats.word_lists import ANNOTATIONS

_WEIGHTS = {
    "name / time": 1.6,
    "time / name": 1.6,
    "time name": 1.3,
    "name time text": 1.1,
    "name:": 1.0,
    "[name]:": 1.0,
    "[name]": 0.9,
    "name |": 0.8,
    "any:": 0.7,
    "name": 0.4,
}
_TIMED_WEIGHT = 1.5
_BOLD_WEIGHT = 1.4
_WEAK = frozenset({"name:", "name |", "[name]:", "[name]", "name", "name time text", "time name", "time [name]"})
"""Styles that ordinary sentences and notes have, too."""
_MAX_PREFACE_WORDS = 150
_MAX_PREFACE_SHARE = 0.15
_MAX_WORDS_PER_TURN = 1500


class Row(NamedTuple):
    """A line that is not empty."""

    number: int
    text: str
    after_blank: bool
    mark: str = ""
    """`bold` if the start of the line is, `#` for a heading, `code` for a line that starts no turn."""
    num_bold: int = 0
    """Number of letters up to the end of the bold part."""


@dataclass
class Layout:
    """Where turns start. `heads` has, by the index of the row, the head that was chosen."""

    style: str = ""
    heads: dict[int, Head] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    """Rows that are part of the head before them."""
    confidence: float = 0.0
    doubts: list[str] = field(default_factory=list)

    def doubt(self, sentence: str, cost: float) -> None:
        """Adds a doubt that lowers the confidence by `cost`."""
        self.doubts.append(sentence)
        self.confidence = max(0.05, round(self.confidence - cost, 3))


def key_of(name: str) -> str:
    """Returns a label for comparison."""
    return name_of(name).casefold()


def choose_layout(rows: Sequence[Row]) -> Layout:
    """Returns the style that most evidence supports, with the turns that it finds; without a style if none does."""
    candidates = _candidates(rows)
    num_words = [len(row.text.split()) for row in rows]
    best, best_evidence = Layout(), 0.0
    for style, found in candidates.items():
        accepted = accepted_heads(rows, found, style)
        if not accepted or not _is_supported(rows, accepted, found, num_words, style):
            continue
        evidence = _evidence(style, accepted)
        if evidence > best_evidence:
            best, best_evidence = Layout(style, accepted), evidence
    if best.style:
        _add_known_labels(best, candidates)
        best.used = {row + 1 for row, head in best.heads.items() if " / " in head.style}
        _judge_named(best, rows, candidates, num_words)
    _add_times(best, rows)
    if not best.style:
        _judge_unnamed(best, rows, candidates)
    return best


def speakers_of(rows: Sequence[Row]) -> Layout:
    """Returns the lines of captions that name a speaker, as `Name:` or `[NAME]:`."""
    candidates = {style: found for style, found in _candidates(rows).items() if style in ("name:", "[name]:")}
    num_words = [len(row.text.split()) for row in rows]
    layout = Layout(confidence=0.9)
    for style, found in candidates.items():
        accepted = accepted_heads(rows, found, style)
        if accepted and len(accepted) > len(layout.heads) and _is_supported(rows, accepted, found, num_words, style):
            layout = Layout(style, accepted)
    if layout.style:
        _judge_named(layout, rows, candidates, num_words)
    else:
        _judge_unnamed(layout, rows, candidates)
    return layout


def _candidates(rows: Sequence[Row]) -> dict[str, dict[int, Head]]:
    """Returns by style the heads, by row."""
    found: dict[str, dict[int, Head]] = defaultdict(dict)
    num_blank = sum(row.after_blank for row in rows[1:])
    same_spacing = num_blank in (0, len(rows) - 1)  # blank lines separate nothing, or every line
    alone = [name_alone(row.text) if row.mark != "code" else None for row in rows]
    times = [time_head(row.text) if row.mark != "code" else None for row in rows]
    for place, row in enumerate(rows):
        if row.mark == "code":
            continue
        prefix = f"{row.mark} " if row.mark else ""
        next_is_timed = place + 1 < len(rows) and times[place + 1] is not None
        for head in heads_of(row.text, any_name=row.num_bold > 0):
            if head.style == "time name" and next_is_timed:
                continue  # a line of few words, as the next one
            if _is_bold(row, head):
                found[prefix + head.style][place] = head
        follower = rows[place + 1] if place + 1 < len(rows) else None
        if alone[place] is None:
            name, time = None, times[place]
            if time and not time.rest.strip() and follower and (name := alone[place + 1]) and place + 2 < len(rows):
                found["time / name"][place] = Head("time / name", name, time.time, "")
            continue
        name = alone[place]
        if name is None or follower is None:
            continue
        time = times[place + 1]
        if time and not time.rest.strip():
            found["name / time"][place] = Head("name / time", name, time.time, "")
        elif row.mark or same_spacing or (row.after_blank and not follower.after_blank):
            found[prefix + "name"][place] = Head("name", name, None, "")
    return found


def _is_bold(row: Row, head: Head) -> bool:
    """Whether a row without a bold start, or exactly the bold part of it, has the head."""
    if not row.num_bold:
        return True
    ends = len(row.text) - len(head.rest) >= row.num_bold
    return ends and (head.name or "").strip() in row.text[: row.num_bold]


def accepted_heads(rows: Sequence[Row], found: dict[int, Head], style: str) -> dict[int, Head]:
    """Returns the heads whose labels the file supports."""
    bare = style.removeprefix("bold ").removeprefix("# ")
    keys = {place: key_of(head.name or "") for place, head in found.items()}
    counts = Counter(keys.values())
    if bare == "any:" and not (len(found) > 3 and 2 * len(counts) <= len(found) and _explains(rows, found, style)):
        return {}
    is_weak = bare in _WEAK and not (style.startswith("bold ") and bare != "name")
    rejected = {key for key in counts if _is_annotation(key) and not (bare in TIMED_STYLES and counts[key] > 1)}
    if not is_weak:
        return {place: head for place, head in found.items() if keys[place] not in rejected}
    lowered = _lowercase_words(rows, [key for key in counts if " " not in key and key.isalpha()])
    total = sum(count for key, count in counts.items() if key not in rejected)
    for key, count in counts.items():
        is_minor = (count < 5 and count < 0.1 * total) or counts.most_common(1)[0][1] < 2
        if is_minor and lowered[key] >= count and not is_role(key):
            rejected.add(key)
    recurring = {key for key, count in counts.items() if count > 1 and key not in rejected}
    if style.startswith("# ") and not recurring:
        return {}
    shapes = _shapes(found[place].name or "" for place, key in keys.items() if key in recurring)
    after_blank = [rows[place].after_blank for place, key in keys.items() if key in recurring]
    needs_blank = len(after_blank) > 3 and sum(after_blank) >= 0.95 * len(after_blank)
    explains = _explains(rows, found, style)
    accepted: dict[int, Head] = {}
    for place, head in found.items():
        key, row = keys[place], rows[place]
        if key in rejected:
            continue
        starts = place == 0 or rows[place - 1].mark == "#" or ends_sentence(rows[place - 1].text)
        if key not in recurring and not explains:
            is_odd = bool(shapes) and not is_role(key) and _shapes([head.name or ""]).isdisjoint(shapes)
            if is_odd or (needs_blank and not row.after_blank) or not (starts or row.after_blank):
                continue
            if not recurring and bare in ("name", "[name]", "time name", "name time text", "name |"):
                continue
        accepted[place] = head
    return accepted


def _is_annotation(key: str) -> bool:
    first = key.split()[0] if key else ""
    return (
        key in ANNOTATIONS
        or (is_known_key(key) and not is_role_key(key))
        or (
            first in ("step", "chapter", "part", "section", "figure", "table", "act", "scene", "note", "question")
            and key != first
        )
    )


def _shapes(names: Iterable[str]) -> set[str]:
    """Returns whether names are in capitals or not; short ones such as `DHH` and roles say nothing."""
    return {
        "upper" if name.isupper() else "mixed"
        for name in names
        if not is_role(name) and not (name.isupper() and len(name) < 5)
    }


def _explains(rows: Sequence[Row], found: dict[int, Head], style: str) -> bool:
    """Whether nearly every unit of the text starts so: every paragraph, every bold line, every line with a time."""
    bare = style.removeprefix("bold ").removeprefix("# ")
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
    wanted = set(keys)
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(word for word in (each.strip(".,;:!?\"'()") for each in row.text.split()) if word in wanted)
    return counts


def _is_supported(
    rows: Sequence[Row], accepted: dict[int, Head], found: dict[int, Head], num_words: Sequence[int], style: str
) -> bool:
    """Whether the style explains the file: where turns start, how many labels they have, how long they are."""
    bare = style.removeprefix("bold ").removeprefix("# ")
    places = sorted(accepted)
    labels = {key_of(head.name or "") for head in accepted.values()}
    total, before = sum(num_words), sum(num_words[: places[0]])
    strong = style.startswith("bold ") and bare != "name"
    if len(places) == 1:
        return _is_single_turn(rows, accepted[places[0]], places[0], total, strong)
    recurs = len(labels) < len(places)
    if bare in ("name", "time name", "name time text", "[name]", "name |"):
        all_roles = all(is_role(label) for label in labels)
        if not all_roles and not _explains(rows, found, style) and len(places) - len(labels) < 0.3 * len(places):
            return False
    if bare in ("name", "[name]") and len(places) < 0.25 * sum(row.after_blank for row in rows):
        return False
    if bare in TIMED_STYLES or " / " in bare or strong:
        return True
    is_late = before > max(_MAX_PREFACE_WORDS, _MAX_PREFACE_SHARE * total)
    if is_late and (len(places) < 6 or before > 0.5 * total):
        return False
    if (total - before) / len(places) > _MAX_WORDS_PER_TURN:
        return False
    if not recurs and before > 0.5 * total:
        return False
    if not recurs:
        paragraphs = sum(row.after_blank for row in rows[places[0] :]) or len(rows)
        return len(places) >= 0.4 * min(paragraphs, len(rows) - places[0])
    is_sparse = len(places) < 0.2 * len(rows) and (total - before) / len(places) > 200
    return not (len(labels) == 1 and is_sparse)


def _is_single_turn(rows: Sequence[Row], head: Head, place: int, total: int, strong: bool) -> bool:
    name = name_of(head.name or "")
    if strong or (head.time is not None and place <= 3):
        return True
    is_name = is_role(name) or (looks_like_name(name) and len(name.split()) > 1)
    return place == 0 and head.style == "name:" and (total < 60 or is_name)


def _evidence(style: str, accepted: dict[int, Head]) -> float:
    bare = style.removeprefix("bold ").removeprefix("# ")
    weight = _WEIGHTS.get(bare, _TIMED_WEIGHT if bare in TIMED_STYLES else 1.0)
    if style.startswith("bold "):
        weight = max(weight, _BOLD_WEIGHT)
    times = [head.time for _, head in sorted(accepted.items()) if head.time]
    if len(times) > 3 and share_in_order(times) < 0.8:
        weight *= 0.3
    return weight * len(accepted)


def share_in_order(times: Sequence[str]) -> float:
    """Returns the share of `HH:MM:SS` times that are not before the previous one; 1 if there are fewer than two."""
    pairs = list(pairwise(times))
    return sum(before <= after for before, after in pairs) / len(pairs) if pairs else 1.0


def _add_known_labels(layout: Layout, candidates: dict[str, dict[int, Head]]) -> None:
    """Adds lines of other styles that start with a label of the chosen one."""
    labels = {key_of(head.name or "") for head in layout.heads.values()}
    for style, found in sorted(candidates.items(), key=lambda item: -_evidence(item[0], item[1])):
        bare = style.removeprefix("bold ").removeprefix("# ")
        if bare in ("name", "name time text") or " / " in bare:
            continue
        for place, head in found.items():
            if place not in layout.heads and key_of(head.name or "") in labels:
                layout.heads[place] = head


def _add_times(layout: Layout, rows: Sequence[Row]) -> None:
    """Adds the rows that start with a time and no name."""
    named = bool(layout.style)
    found = {
        place: head
        for place, row in enumerate(rows)
        if row.mark != "code"
        and place not in layout.heads
        and place not in layout.used
        and (head := time_head(row.text))
    }
    if named:
        found = {
            place: head
            for place, head in found.items()
            if not head.rest.strip() or rows[place].text.lstrip()[:1] in ("(", "[", "<", "（", "［", "【")
        }
        merged = sorted([*found.items(), *layout.heads.items()])
        if share_in_order([head.time for _, head in merged if head.time]) < 0.8:
            return
    elif not _are_times(found, len(rows)):
        return
    if found and not named:
        layout.style, layout.confidence = "time", 0.85
        order = share_in_order([head.time or "" for _, head in sorted(found.items())])
        if order < 0.98:
            layout.doubt(f"{1 - order:.0%} of the times go back", 0.1 + (1 - order))
    layout.heads.update(found)


def _are_times(found: dict[int, Head], num_rows: int) -> bool:
    """Whether rows that start with a time are more than a few lines that happen to."""
    if (len(found) < 2 and num_rows > 2) or (len(found) < 4 and len(found) < 0.2 * num_rows):
        return False
    return len(found) < 4 or share_in_order([head.time or "" for _, head in sorted(found.items())]) >= 0.7


def _judge_named(
    layout: Layout, rows: Sequence[Row], candidates: dict[str, dict[int, Head]], num_words: Sequence[int]
) -> None:
    places = sorted(layout.heads)
    labels = Counter(key_of(layout.heads[place].name or "") for place in places)
    times = [layout.heads[place].time for place in places]
    total = sum(num_words)
    layout.confidence = 0.98 if any(times) else 0.93
    order = share_in_order([time for time in times if time])
    if order < 0.98:
        layout.doubt(f"{1 - order:.0%} of the times go back", min(0.4, 0.05 + 2 * (1 - order)))
    if len(places) > 3 and len(labels) == len(places):
        layout.doubt("every speaker label occurs once", 0.3)
    elif len(labels) > 25 and len(labels) > len(places) / 3:
        layout.doubt(f"{len(labels)} speaker labels for {len(places)} turns", 0.3)
    longest = max(sum(num_words[start:end]) for start, end in pairwise([*places, len(rows)]))
    if total > 400 and len(places) > 2 and longest > 0.6 * total:
        layout.doubt(f"one turn has {longest / total:.0%} of the words", 0.3)
    if len(places) == 1 and total > 200:
        layout.doubt("there is one turn only", 0.2)
    others = {
        name_of(head.name or "")
        for style in (layout.style, "name:")
        for place, head in candidates.get(style, {}).items()
        if place not in layout.heads and place > places[0]
    }
    if others:
        names = ", ".join(repr(name) for name in sorted(others)[:5])
        num = len(others)
        layout.doubt(
            f"read as text, not as speakers: {names}{' and more' if num > 5 else ''}", min(0.3, 0.2 * num / len(places))
        )


def _judge_unnamed(layout: Layout, rows: Sequence[Row], candidates: dict[str, dict[int, Head]]) -> None:
    if not layout.style:
        layout.confidence = layout.confidence or 0.8
    counts = Counter(
        name_of(head.name or "")
        for style, found in candidates.items()
        if style not in ("name", "any:", "name |") and not style.startswith("# ") and style != "bold name"
        for head in found.values()
    )
    labels = {name: count for name, count in counts.items() if not _is_annotation(name.casefold())}
    if num := sum(labels.values()):
        names = ", ".join(repr(name) for name, _ in Counter(labels).most_common(3))
        cost = 0.3 if num >= max(2, 0.02 * len(rows)) else 0.05
        layout.doubt(f"lines that start like turns were read as text: {names}", cost)
