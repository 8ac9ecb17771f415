"""Decides how the lines of a text name speakers and times: every style is a candidate, the whole file decides.

A line starts a turn only if the file supports it: labels recur, have the shape of names, stand where turns start; times do
not go back; one style explains the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from midthought.memory.formats.between_turns import (
    drop_first_fields,
    mark_capitals,
    mark_last_rows,
    mark_loose_rows,
    notes_between,
)
from midthought.memory.formats.doubts import judge_inner_lines, judge_list, judge_named, judge_notation, judge_unnamed
from midthought.memory.formats.header_fields import is_role_key
from midthought.memory.formats.label_repairs import add_signed_labels, remove_common_start, remove_common_word
from midthought.memory.formats.line_candidates import (
    ODD,
    WEAK,
    Layout,
    Row,
    bare_style,
    bold_starts,
    candidates_of,
    in_order,
    is_annotation,
    is_name_list,
    key_of,
)
from midthought.memory.formats.line_heads import TIMED_STYLES, Head, heads_of, is_label, time_head
from midthought.memory.formats.line_times import add_times, scale_numbers
from midthought.memory.formats.notations import INDUCED, Notation, has_words, notation_of, once_labelled
from midthought.memory.formats.reading import name_of
from midthought.memory.formats.scripts import ends_sentence, is_role, looks_like_name, word_count

_WEIGHTS = {
    "name / time": 1.6,
    "time / name": 1.6,
    "time name": 1.3,
    "name time text": 1.1,
    "name:": 1.0,
    "[name]:": 1.0,
    "[name]": 0.9,
    "speaker: name": 1.5,
    "name —": 0.7,
    "name\t": 0.6,
    "name": 0.4,
    "name below": 0.35,
}
_TIMED_WEIGHT = 1.5
_BOLD_WEIGHT = 1.4
_NEEDS_RECURRENCE = (
    "name",
    "name below",
    "time name",
    "name time text",
    "[name]",
    "name —",
    "name\t",
)
"""Styles whose labels must recur."""
_MAX_PREFACE_WORDS = 150
_MAX_PREFACE_SHARE = 0.15
_MAX_WORDS_PER_TURN = 1500
_MAX_LABEL_LETTERS = 60
_MAX_PHRASES = 200
_ARTICLES = ("a", "an", "this", "that")
_MAX_MISSED = 0.2
_MOST_COMMON = 0.9
_MAX_MORE_LABELS = 2
_MAX_MORE_HEADS = 5
_RECURRING_ROLES = ("question", "answer")
"""Labels that are no annotations if they recur."""


def choose_layout(rows: Sequence[Row]) -> Layout:
    """Returns the style that most evidence supports, with the turns that it finds; without a style if none does."""
    candidates = candidates_of(rows)
    num_words = [word_count(row.text) for row in rows]
    best, best_evidence = Layout(), 0.0
    for style, found in candidates.items():
        accepted = {} if style.startswith(ODD) else accepted_heads(rows, found, style)
        if not accepted or not _is_supported(rows, accepted, found, num_words, style):
            continue
        evidence = _evidence(style, accepted)
        if evidence > best_evidence:
            best, best_evidence = Layout(style, accepted), evidence
    notation = notation_of(rows)
    if (
        notation
        and notation.is_certain
        and (notation.is_strong or _MAX_MORE_HEADS * len(best.heads) < len(notation.heads))
    ):
        best = _with_notation(best, notation)
    if not best.style and (heads := bold_starts(rows)):
        best = Layout("bold [name]", heads)
    if best.style:
        drop_first_fields(best, rows)
        remove_common_word(best)
        remove_common_start(best)
        _add_known_labels(best, rows, candidates)
        add_signed_labels(best, rows)
        best.used = {row + 1 for row, head in best.heads.items() if " / " in head.style}
        mark_capitals(best, rows)
        mark_loose_rows(best, rows)
        mark_last_rows(best, rows)
        judge_named(best, rows, candidates, num_words)
    is_named = bool(best.style)
    scale_numbers(best, sum(num_words))
    add_times(best, rows)
    if best.heads:
        best.notes |= notes_between(best, rows)
    if is_named:
        judge_inner_lines(best, rows)
    else:
        judge_unnamed(best, rows, candidates)
        judge_notation(best, notation, len(rows))
        judge_list(best, rows)
    return best


def _with_notation(known: Layout, notation: Notation) -> Layout:
    """Returns the turns of the notation if the known style misses many of them; else of the known style.

    Signs and times that the notation has before the words, and the known style takes for words, are removed.
    """
    turns, doubtful = once_labelled(notation)
    induced = Layout(INDUCED, notation.heads | turns)
    induced.leftovers = [f"{head.name} {head.rest}".strip() for head in doubtful.values()]
    is_two_rows = " / " in known.style
    missed = [
        place for place in notation.heads if place not in known.heads and not (is_two_rows and place - 1 in known.heads)
    ]
    if len(missed) > _MAX_MISSED * len(notation.heads):
        return induced
    common = known.heads.keys() & notation.heads.keys()
    if missed and len(common) >= _MOST_COMMON * len(known.heads) and notation.is_strong:
        return Layout(known.style, notation.heads | known.heads)
    labels = {key_of(known.heads[place].name or "") for place in common}
    if len(labels) > _MAX_MORE_LABELS * len(notation.labels):  # `#1 Ann`
        return induced
    signs = {place: known.heads[place].rest.removesuffix(notation.heads[place].rest) for place in common}
    if len(common) < _MOST_COMMON * len(known.heads) or not all(signs.values()) or any(map(has_words, signs.values())):
        known.leftovers = [
            f"{head.name} {head.rest}".strip() for place, head in doubtful.items() if place not in known.heads
        ]
        return known
    heads = {place: notation.heads[place]._replace(name=known.heads[place].name) for place in common}
    return Layout(
        known.style,
        known.heads
        | {
            place: head._replace(style=known.heads[place].style, time=known.heads[place].time or head.time)
            for place, head in heads.items()
        },
    )


def speakers_of(rows: Sequence[Row]) -> Layout:
    """Returns the lines of captions that name a speaker, as `Name:` or `[NAME]:`."""
    candidates = {
        style: found
        for style, found in candidates_of(rows).items()
        if bare_style(style.removeprefix(ODD)) in ("name:", "[name]:")
    }
    num_words = [word_count(row.text) for row in rows]
    layout = Layout(confidence=0.9)
    for style, found in candidates.items():
        accepted = {} if style.startswith(ODD) else accepted_heads(rows, found, style)
        if accepted and len(accepted) > len(layout.heads) and _is_supported(rows, accepted, found, num_words, style):
            layout = Layout(style, accepted)
    notation = notation_of(rows)
    if notation and notation.is_certain and notation.is_strong:
        layout = _with_notation(layout, notation)
    if layout.style:
        odd = candidates.get(ODD + layout.style, {})  # labels of any shape that recur
        if len(layout.heads) >= len(odd) and len(layout.heads | odd) > 0.8 * sum(row.after_blank for row in rows):
            layout.heads |= odd
        free = [place for place, row in enumerate(rows) if row.after_blank and place not in layout.heads]
        if len(free) < (1 - _MOST_COMMON) * len(layout.heads):  # nearly every cue has a label: any shape will do
            more = {place: heads_of(rows[place].text, any_name=True) for place in free}
            layout.heads |= {
                place: heads[0] for place, heads in more.items() if [each.style for each in heads] == ["name:"]
            }
        judge_named(layout, rows, candidates, num_words)
    else:
        judge_unnamed(layout, rows, candidates)
        judge_notation(layout, notation, len(rows))
    return layout


def accepted_heads(rows: Sequence[Row], found: dict[int, Head], style: str) -> dict[int, Head]:
    """Returns the heads whose labels the file supports."""
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
    values = Counter(
        keys[place] for place, head in found.items() if is_role_key(keys[place]) and is_name_list(head.rest)
    )
    rejected |= {key for key, num in values.items() if num >= 0.8 * counts[key] and len(counts) > 2}
    following = [row.text for row in rows[1:]] + [""]
    rejected |= {
        keys[place]
        for place, head in found.items()
        if counts[keys[place]] == 1 and _are_names(head.rest.strip() or following[place])
    }
    lowered = _lowercase_words(rows, [key for key in counts if key not in initials])
    total = sum(count for key, count in counts.items() if key not in rejected)
    words: set[str] = set()
    capitals = {keys[place] for place, head in found.items() if (head.name or "").isupper()}
    if sum(counts[key] for key in capitals) < 0.8 * len(found):
        capitals = set()
    for key, count in counts.items():
        is_minor = (count < 5 and count < 0.1 * total) or counts.most_common(1)[0][1] < 2
        if is_minor and lowered[key] >= count and not is_role(key) and key not in capitals:
            words.add(key)
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
    explains = _explains(rows, found, style)
    accepted: dict[int, Head] = {}
    for place, head in found.items():
        key, row = keys[place], rows[place]
        if key in rejected or (key in words and not accepted):
            continue
        starts = place == 0 or rows[place - 1].mark == "#" or ends_sentence(rows[place - 1].text)
        if key not in recurring and not explains:
            own = _shapes([head.name or ""])
            is_odd = bool(own and shapes) and not is_role(key) and own.isdisjoint(shapes)
            is_inside = needs_blank and not row.after_blank and rows[place - 1].mark != "#"
            if (is_odd or is_inside or not (starts or row.after_blank)) and not is_role(key):
                continue
            if not recurring and bare in _NEEDS_RECURRENCE:
                continue
        accepted[place] = head
    if bare == "name":  # names one after another, and `Ann Lee - President`, are a list of those present
        silent = Counter(keys[p] for p in accepted if p + 1 in accepted or is_role("".join(following[p : p + 1])))
        return {
            place: head
            for place, head in accepted.items()
            if 2 * silent[keys[place]] <= counts[keys[place]]
            and (keys[place] in recurring or not any(keys[place].startswith(f"{key} - ") for key in recurring))
        }
    return accepted


def _are_names(text: str) -> bool:
    """Whether the text is a list of full names, as in `Remote: Ann Lee (AL), Bob Reece (BR)`."""
    return text.count(",") > 0 and text.count(" ") > 2 and is_name_list(text)


def _shapes(names: Iterable[str]) -> set[str]:
    """Returns whether names are in capitals or not; short ones such as `DHH` and roles say nothing."""
    return {
        "upper" if name.isupper() else "mixed"
        for name in names
        if not is_role(name) and not (name.isupper() and len(name) < 5)
    }


def _explains(rows: Sequence[Row], found: dict[int, Head], style: str) -> bool:
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


def _is_supported(
    rows: Sequence[Row], accepted: dict[int, Head], found: dict[int, Head], num_words: Sequence[int], style: str
) -> bool:
    """Whether the style explains the file: where turns start, how many labels they have, how long they are."""
    bare = bare_style(style)
    places = sorted(accepted)
    labels = {key_of(head.name or "") for head in accepted.values()}
    total, before = sum(num_words), sum(num_words[: places[0]])
    strong = style.startswith("bold ") and bare != "name"
    if len(places) == 1:
        return _is_single_turn(rows, accepted[places[0]], places[0], total, strong)
    recurs = len(labels) < len(places)
    if bare == "name —" and 2 * sum(ends_sentence(head.rest) for head in accepted.values()) < len(accepted):
        return False
    if bare in _NEEDS_RECURRENCE:
        all_roles = all(is_role(label) for label in labels)
        if not all_roles and not _explains(rows, found, style) and len(places) - len(labels) < 0.3 * len(places):
            return False
    is_titled = 2 * sum("--" in rows[place].text for place in places) > len(places)  # `Ann Lee--Analyst`
    if (
        bare in ("name", "[name]")
        and not is_titled
        and len(places) < max(0.25 * sum(row.after_blank for row in rows), 0.05 * len(rows))
    ):
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
    bare = bare_style(style)
    weight = _WEIGHTS.get(bare, _TIMED_WEIGHT if bare in TIMED_STYLES else 1.0)
    if style.startswith("bold "):
        weight = max(weight, _BOLD_WEIGHT)
    if in_order(head for _, head in sorted(accepted.items())) < 0.8 and len(accepted) > 3:
        weight *= 0.3
    return weight * len(accepted)


def _bold_labels(layout: Layout, rows: Sequence[Row], candidates: dict[str, dict[int, Head]]) -> set[str]:
    """Returns the bold labels with a colon, if the labels of the layout are bold and have none."""
    num_bold = sum(rows[place].num_bold > 0 for place in layout.heads)
    names = [head.name or "" for head in candidates.get("bold name:", {}).values()]
    return (
        set(map(key_of, filter(is_label, names)))
        if layout.style == INDUCED and 2 * num_bold > len(layout.heads)
        else set()
    )


def _add_known_labels(layout: Layout, rows: Sequence[Row], candidates: dict[str, dict[int, Head]]) -> None:
    """Adds lines of other styles, and lines without a blank after the colon, that start with a label of the chosen one."""
    labels, first = {key_of(head.name or "") for head in layout.heads.values()}, min(layout.heads)
    labels |= _bold_labels(layout, rows, candidates)
    for style, found in sorted(candidates.items(), key=lambda item: -_evidence(item[0], item[1])):
        bare = bare_style(style)
        if bare in ("name", "name time text") or style.startswith(ODD):
            continue
        is_list = bare == "name —"  # of those present, before the first turn
        for place, head in found.items():
            is_taken = place in layout.heads or (" / " in bare and place + 1 in layout.heads)
            is_before = place < first and (is_list or not ends_sentence(head.rest))
            if not is_taken and key_of(head.name or "") in labels and not is_before:
                layout.heads[place] = head
    for place, row in enumerate(rows):
        sign = ";" if ";" in row.text[:_MAX_LABEL_LETTERS].partition(":")[0] else ":"
        name, colon, rest = row.text[:_MAX_LABEL_LETTERS].partition(sign)
        is_typo = colon and rest and rest[0] not in "0123456789/" and key_of(name) in labels and row.mark != "code"
        is_whole = name[:1] != "[" or "]" in name
        if is_typo and is_whole and place not in layout.heads and (place > first or ends_sentence(rest)):
            layout.heads[place] = Head("name:", name, None, row.text[len(name) + 1 :])
        if is_role(row.text) and key_of(row.text) in labels and not {place, place - 1} & layout.heads.keys():
            layout.heads[place] = Head("name", row.text, None, "")
        name, bracket, _ = row.text[:_MAX_LABEL_LETTERS].partition(" [")  # `Ann [crosstalk 00:12] text`
        if bracket and key_of(name) in labels and place not in layout.heads and row.mark != "code":
            layout.heads[place] = Head("name [", name, None, row.text[len(name) + 1 :])
