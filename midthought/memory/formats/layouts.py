"""Decides how the lines of a text name speakers and times: every style is a candidate, the whole file decides.

A line starts a turn only if the file supports it: labels recur, have the shape of names, stand where turns start; times do
not go back; one style explains the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from midthought.memory.formats.accepted_labels import (
    NEEDS_RECURRENCE,
    accepted_heads,
    are_wrapped,
    explains,
    listing_labels,
)
from midthought.memory.formats.between_turns import (
    drop_first_fields,
    mark_capitals,
    mark_last_rows,
    mark_loose_rows,
    mark_meeting_notes,
    mark_repeated_rows,
    mark_sounds,
    notes_between,
)
from midthought.memory.formats.doubts import judge_inner_lines, judge_list, judge_named, judge_notation, judge_unnamed
from midthought.memory.formats.label_repairs import (
    add_joint_labels,
    add_signed_labels,
    add_unnamed_turns,
    capital_labels,
    remove_common_start,
    remove_common_word,
)
from midthought.memory.formats.line_candidates import (
    ODD,
    Layout,
    Row,
    bare_style,
    bold_starts,
    candidates_of,
    in_order,
    key_of,
)
from midthought.memory.formats.line_heads import TIMED_STYLES, Head, heads_of, is_label, time_head
from midthought.memory.formats.line_times import add_times, scale_numbers
from midthought.memory.formats.line_tokens import has_words
from midthought.memory.formats.notations import INDUCED, Notation, notation_of, once_labelled
from midthought.memory.formats.participants import merge_described
from midthought.memory.formats.reading import name_of
from midthought.memory.formats.scripts import ends_sentence, is_role, looks_like_name, word_count

_WEIGHTS = {
    "name / time": 1.6,
    "time / name": 1.6,
    "name / title": 1.6,
    "time name": 1.3,
    "name time text": 1.1,
    "name:": 1.0,
    "[name]:": 1.0,
    "[name]": 0.9,
    "label": 0.9,
    "speaker: name": 1.5,
    "time speaker: name": 1.6,
    "name —": 0.7,
    "name\t": 0.6,
    "name": 0.4,
    "name below": 0.35,
}
_TIMED_WEIGHT = 1.5
_BOLD_WEIGHT = 1.4
_MAX_PREFACE_WORDS = 150
_MAX_PREFACE_SHARE = 0.15
_MAX_WORDS_PER_TURN = 1500
_MAX_LABEL_LETTERS = 60
_MAX_MISSED = 0.2
_MOST_COMMON = 0.9
_MIN_LEFT_SHARE = 0.02
_MAX_MORE_LABELS = 2
_MAX_MORE_HEADS = 5
_MIN_SINGLE_WORDS = 40
_MIN_RECURRING = 3
_MIN_ENDS = 0.03
"""Share of the lines that end sentences, in captions with signs of punctuation."""
_MAX_SINGLE_WORDS = 1.2
"""Words per cue of captions that show words one by one."""


def choose_layout(rows: Sequence[Row]) -> Layout:
    """Returns the style that most evidence supports, with the turns that it finds; without a style if none does."""
    candidates = candidates_of(rows)
    num_words = [word_count(row.text) for row in rows]
    best, best_evidence, is_wrapped = Layout(), 0.0, are_wrapped(rows)
    for style, found in candidates.items():
        accepted = {} if style.startswith(ODD) else accepted_heads(rows, found, style, is_wrapped=is_wrapped)
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
        lists = listing_labels(best.heads)
        best.heads = {place: head for place, head in best.heads.items() if key_of(head.name or "") not in lists}
    if not best.style and (heads := bold_starts(rows)):
        best = Layout("bold [name]", heads)
    if not best.style and (heads := capital_labels(rows, candidates)):
        best = Layout("name:", heads)
    if best.style:
        drop_first_fields(best, rows)
        remove_common_word(best)
        remove_common_start(best)
        _add_known_labels(best, rows, candidates)
        add_signed_labels(best, rows)
        add_joint_labels(best, rows)
        merge_described(best)
        best.used = {row + 1 for row, head in best.heads.items() if " / " in head.style}
        mark_repeated_rows(best, rows)
        mark_capitals(best, rows)
        mark_sounds(best, rows)
        mark_loose_rows(best, rows)
        mark_last_rows(best, rows)
        mark_meeting_notes(best, rows)
        add_unnamed_turns(best, rows)
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
        left = [f"{head.name} {head.rest}".strip() for place, head in doubtful.items() if place not in known.heads]
        known.leftovers = left if len(left) >= _MIN_LEFT_SHARE * len(known.heads) else []
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
    """Returns the lines of captions that name a speaker, as `Name:` or `[NAME]:`. Cues of single words name none."""
    num_words = [word_count(row.text) for row in rows]
    if len(rows) >= _MIN_SINGLE_WORDS and sum(num_words) < _MAX_SINGLE_WORDS * len(rows):
        return Layout(confidence=0.9)
    inside = _within_sentences(rows)
    candidates = {
        style: _sentence_starts(found, inside)
        for style, found in candidates_of(rows).items()
        if bare_style(style.removeprefix(ODD)) in ("name:", "[name]:")
    }
    sentences = [row._replace(after_blank=row.after_blank and place not in inside) for place, row in enumerate(rows)]
    layout = Layout(confidence=0.9)
    for style, found in candidates.items():
        accepted = {} if style.startswith(ODD) else accepted_heads(sentences, found, style)
        if accepted and len(accepted) > len(layout.heads) and _is_supported(rows, accepted, found, num_words, style):
            layout = Layout(style, accepted)
    notation = notation_of(rows)
    if notation and notation.is_certain and notation.is_strong:
        layout = _with_notation(layout, notation)
        layout.heads = _sentence_starts(layout.heads, inside)
        layout = layout if layout.heads else Layout(confidence=0.9)
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


def _ends(text: str) -> bool:
    """Whether a line ends a sentence, or a note such as `*applause*`."""
    return ends_sentence(text) or text.rstrip().endswith(("*", "♪"))


def _within_sentences(rows: Sequence[Row]) -> frozenset[int]:
    """Returns the rows of captions that continue a sentence, if most cues do and the captions have ends of sentences."""
    inside = frozenset(place for place, row in enumerate(rows[1:], 1) if not _ends(rows[place - 1].text))
    firsts = [place for place, row in enumerate(rows) if row.after_blank]
    is_wrapped = 2 * sum(place in inside for place in firsts) > len(firsts)
    return inside if is_wrapped and len(inside) <= (1 - _MIN_ENDS) * len(rows) else frozenset()


def _sentence_starts(found: dict[int, Head], inside: frozenset[int]) -> dict[int, Head]:
    """Returns the heads without the labels that are always within a sentence, if they occur once or twice."""
    counts = Counter(key_of(head.name or "") for head in found.values() if (head.name or "")[:1].isupper())
    starts = {key_of(head.name or "") for place, head in found.items() if place not in inside}
    starts |= {key for key, num in counts.items() if num >= _MIN_RECURRING}
    return {place: head for place, head in found.items() if key_of(head.name or "") in starts} if inside else found


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
    if bare in NEEDS_RECURRENCE:
        all_roles = all(is_role(label) for label in labels)
        if not all_roles and not explains(rows, found, style) and len(places) - len(labels) < 0.3 * len(places):
            return False
    is_titled = 2 * sum("--" in rows[place].text for place in places) > len(places)  # `Ann Lee--Analyst`
    if (
        bare in ("name", "[name]")
        and not is_titled
        and len(places) < max(0.25 * sum(row.after_blank for row in rows), 0.05 * len(rows))
    ):
        return False
    if " / " in bare and not recurs:
        times = [row for row in rows if (time := time_head(row.text)) and not time.rest.strip()]
        return 2 * len(places) >= len(times)  # else: a few lines of one or two words between times
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
    if place <= 3 and (strong or head.time is not None):
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
    below = {place + 1 for place, head in layout.heads.items() if " / " in head.style}
    for style, found in sorted(candidates.items(), key=lambda item: -_evidence(item[0], item[1])):
        bare = bare_style(style)
        if bare in ("name", "name time text") or style.startswith(ODD):
            continue
        is_list = bare == "name —"  # of those present, before the first turn
        for place, head in found.items():
            is_taken = place in layout.heads or place in below or (" / " in bare and place + 1 in layout.heads)
            is_before = place < first and (is_list or not ends_sentence(head.rest))
            if not is_taken and key_of(head.name or "") in labels and not is_before:
                layout.heads[place] = head
    for place, row in enumerate(rows):
        sign = ";" if ";" in row.text[:_MAX_LABEL_LETTERS].partition(":")[0] else ":"
        name, colon, rest = row.text[:_MAX_LABEL_LETTERS].partition(sign)
        is_typo = colon and rest and rest[0] not in "0123456789/" and key_of(name) in labels and row.mark != "code"
        is_whole = name[:1] != "[" or "]" in name
        if (
            is_typo
            and is_whole
            and place not in layout.heads
            and place not in below
            and (place > first or ends_sentence(rest))
        ):
            layout.heads[place] = Head("name:", name, None, row.text[len(name) + 1 :])
        if is_role(row.text) and key_of(row.text) in labels and not {place, place - 1} & layout.heads.keys():
            layout.heads[place] = Head("name", row.text, None, "")
        name, bracket, _ = row.text[:_MAX_LABEL_LETTERS].partition(" [")  # `Ann [crosstalk 00:12] text`
        if bracket and key_of(name) in labels and place not in layout.heads and row.mark != "code":
            layout.heads[place] = Head("name [", name, None, row.text[len(name) + 1 :])
