"""Finds how a text writes its turns from what recurs in it: the same signs around a few labels that alternate.

Does not know any notation. It is a second reading beside the known styles: it reads turns that they miss, and adds doubts.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from midthought.memory.formats.line_candidates import Row, continues_sentence, is_annotation, key_of
from midthought.memory.formats.line_heads import TITLES, Head, is_label
from midthought.memory.formats.line_tokens import TIME, Token, has_words, tokens_of
from midthought.memory.formats.scripts import ends_sentence, folded, is_unspaced, labels_within, word_count
from midthought.memory.turns import CLOCK, clock_time

_DASH = re.compile(r"\s[-–—]\s")
_END = re.compile(r"[.!?…,]+\s*")
_HALF = re.compile(r"[(\[{][^)\]}]*$")
"""A bracket that is not closed."""
_OPENING = {")": "(", "]": "["}
_MAX_LEAD_TOKENS = 16
_MAX_LEADS = 8
_MIN_SPANS = 3
_MIN_SPANS_SHARE = 0.02
_MAX_ROWS = 5000
"""Rows that are read in every notation."""
_MAX_JUDGED = 10
"""Notations that are compared with the whole text."""
_MIN_LEAD_SHARE = 0.4
_MIN_SIGNS_SHARE = 0.05
_MIN_PARAGRAPHS = 0.05
_MAX_LABEL_WORDS = 8
_MAX_LABEL_LETTERS = 60
_MAX_ONCE_WORDS = 3
_WEAK_SIGNS = frozenset(" .,!?…'’\"“”„«»-–—&/@、。､｡،۔؟।॥")
"""Signs that sentences have within, too. A separator without others is weak."""
_TIME_ALONE = re.compile(rf"\W?{CLOCK}\W?")
_AROUND_WORDS = ".,;:!?…\"'“”()[]"
_MIN_HEADS = 6
_MIN_SHARE = 0.9
_MIN_SHARE_OF_BLANKS = 0.95
_MIN_SHARE_OF_SENTENCES = 0.8
_MAX_MAIN_SHARE = 0.85
_MIN_LABELS, _MIN_TITLED = 0.08, 0.02
"""Shares of the rows that labels start."""
_MIN_TITLED_SHARE = 0.6
_TITLE = re.compile(rf"(?i){TITLES}")
_WITH_TITLE = re.compile(
    rf"(?i)(?:{TITLES}\.|the|(?:vice )?chair\w*|senator|representative|secretary|governor|president|judge|justice|general|"
    r"admiral|director|mayor|commissioner|minister|deputy|lord|sir)\s\S"
)
INDUCED = "induced"
"""The style of such a notation."""


class Span(NamedTuple):
    """Places at which a label starts and ends, and at which the words after it start."""

    start: int
    end: int
    rest: int


@dataclass
class Notation:
    """Signs that stand before and after labels, and the turns that they mark."""

    lead: str
    sep: str
    heads: dict[int, Head]
    """Turns whose labels recur, by row."""
    others: dict[int, Head]
    """The same signs around labels that do not recur, at places at which a turn may start."""
    labels: Counter[str]
    share: float
    """Of the places, from the first turn to the last one, at which a turn may start."""
    is_strong: bool
    """Whether the separator has a sign that sentences seldom have."""
    is_certain: bool = False
    """Whether the labels start nearly all units of the text, are few, recur and alternate."""

    is_titled: bool = False
    """Whether nearly all labels have a title, as in `Mr. Lee. I thank you`."""
    num_named: int = 0
    """Turns whose labels have the shape of names and are no words of the text."""
    num_names: int = 0
    """Different ones of these labels."""

    @property
    def evidence(self) -> tuple[bool, bool, int, int]:
        """Of two notations, the one with more is better."""
        gain = len(self.heads) - 2 * len(self.labels)
        return self.is_certain, self.is_strong, gain, len(self.lead) + len(self.sep)


def notation_of(rows: Sequence[Row]) -> Notation | None:
    """Returns the notation that explains most rows; None if less than two labels recur. Takes linear time.

    Of a long text, the first rows are read in every notation, the others only in those that these have.
    """
    wanted = {(each.lead, each.sep) for each in _notations(rows[:_MAX_ROWS])} if len(rows) > _MAX_ROWS else None
    found = _notations(rows, wanted) if wanted is None or wanted else []
    best = sorted(found, key=lambda each: each.evidence)[-_MAX_JUDGED:]
    for notation in best:
        names = _name_labels(rows, notation)
        notation.num_names = len(names)
        notation.num_named = sum(count for label, count in notation.labels.items() if label in names)
        notation.is_certain = _is_certain(notation, rows)
    return max(best, key=lambda each: each.evidence, default=None)


def _notations(rows: Sequence[Row], wanted: Set[tuple[str, str]] | None = None) -> list[Notation]:
    """Returns the notations in which at least two labels recur; with `wanted`, only those with these signs before and after
    labels."""
    tokens = [tokens_of(row) for row in rows]
    are_times = [bool(_TIME_ALONE.fullmatch(row.text)) for row in rows]
    starts = [
        place + are_times[place]
        for place, row in enumerate(rows)
        if (place == 0 or row.after_blank) and place + are_times[place] < len(rows)
    ]
    if len(starts) < max(2, _MIN_PARAGRAPHS * len(rows)):
        starts = [place for place, is_time in enumerate(are_times) if not is_time]
    found: list[Notation] = []
    for lead, offsets in _leads(tokens):
        if wanted is not None and not any(lead == each for each, _ in wanted):
            continue
        own = (
            sorted(offsets)
            if lead.strip() and not has_words(lead) and len(offsets) >= _MIN_PARAGRAPHS * len(rows)
            else starts
        )
        own_rows = frozenset(own)
        firsts = Counter(_first_word(tokens[place][number], rows[place]) for place, number in offsets.items())
        num_again = sum(count for count in firsts.values() if count > 1)
        by_sep: dict[str, dict[int, list[Span]]] = defaultdict(lambda: defaultdict(list))
        for place, number in offsets.items():
            for sep, span in _spans(tokens[place][number:], rows[place].text):
                if span.rest >= rows[place].num_bold and (wanted is None or (lead, sep) in wanted):
                    by_sep[sep][place].append(span)  # a bold label is whole
        for sep, spans in by_sep.items():
            is_usual = len(spans) >= max(_MIN_SPANS, _MIN_SPANS_SHARE * len(rows))
            if sep == " " and num_again < _MIN_SHARE_OF_SENTENCES * len(own):  # too few to be reported
                continue
            if is_usual and not _HALF.search(sep) and (notation := _supported(rows, lead, sep, spans, own, own_rows)):
                found.append(notation)
    return found


def once_labelled(notation: Notation) -> tuple[dict[int, Head], dict[int, Head]]:
    """Returns the turns whose labels occur once and have the shape of names, and other rows with a few words before the signs."""
    first, last = min(notation.heads), max(notation.heads)
    word = common_word(head.name or "" for head in notation.heads.values())
    turns: dict[int, Head] = {}
    doubtful: dict[int, Head] = {}
    for place, head in notation.others.items():
        name = head.name or ""
        if notation.is_titled and not (first < place and is_label(name)):
            continue
        if is_label(name.removesuffix(f" {word}") if word else name) and name.endswith(word):
            turns[place] = head
        elif first < place < last and len(name.split()) <= _MAX_ONCE_WORDS and not continues_sentence(head):
            doubtful[place] = head
    return turns, doubtful


def common_word(names: Iterable[str]) -> str:
    """Returns the word in lower case with which all labels end, such as `says`; empty if there is none."""
    parts = {tuple(name.rstrip(" :").rpartition(" ")[::2]) for name in names}
    words = {word for _, word in parts}
    is_common = len(parts) > 1 and len(words) == 1 and all(before for before, _ in parts)
    word = min(words) if is_common else ""
    return word if word.isalpha() and word.islower() else ""


def _first_word(token: Token, row: Row) -> str:
    return row.text[token.start : token.end].casefold()


def _leads(tokens: Sequence[Sequence[Token]]) -> list[tuple[str, dict[int, int]]]:
    """Returns the starts that most rows have, with the number of the first token after them, by row."""
    counts: Counter[str] = Counter()
    offsets: dict[str, dict[int, int]] = defaultdict(dict)
    for place, row in enumerate(tokens):
        lead = ""
        for number, token in enumerate(row[:_MAX_LEAD_TOKENS]):
            if token.is_word:
                counts[lead] += 1
                offsets[lead][place] = number
            lead += token.sign
    usual = [
        lead
        for lead, count in counts.most_common()
        if count > 2 and count >= (_MIN_LEAD_SHARE if has_words(lead) else _MIN_SIGNS_SHARE) * len(tokens)
    ]
    return [(lead, offsets[lead]) for lead in usual[:_MAX_LEADS]]


def _spans(tokens: Sequence[Token], text: str) -> Iterator[tuple[str, Span]]:
    """Returns (separator, span) for every end that the label may have, and every end of the signs after it."""
    start, number = tokens[0].start, 0
    for _ in range(_MAX_LABEL_WORDS):
        if number >= len(tokens) or tokens[number].start - start > _MAX_LABEL_LETTERS:
            return
        stop = next((n for n in range(number + 1, len(tokens)) if tokens[n].is_word), len(tokens))
        run = _without_closing(tokens[number + 1 : stop], text[start : tokens[number].end])
        is_last = stop == len(tokens) and tokens[-1].end == len(text)
        for skipped in (0, 2) if [token.sign for token in run[:2]] == [" ", "#"] else (0,):  # `Speaker 1`
            end = tokens[stop - len(run) - 1 + skipped].end
            if is_last:
                yield "".join(token.sign for token in run[skipped:]) + "\n", Span(start, end, len(text))
            for last in range(skipped, len(run)):
                if run[last].sign in " \t" or (last + 1 == len(run) and not is_last):
                    yield "".join(token.sign for token in run[skipped : last + 1]), Span(start, end, run[last].end)
        number = stop


def _without_closing(run: Sequence[Token], label: str) -> Sequence[Token]:
    """Returns the signs after a label without those that belong to it: a bracket that it opens, `_` at its end."""
    while run:
        if run[0].sign == "." and len(run) > 1 and run[1].sign in _OPENING:
            label, run = label + ".", run[1:]
        sign = run[0].sign
        is_open = label.count(_OPENING[sign]) > label.count(sign) if sign in _OPENING else label.count('"') % 2 == 1
        if not (sign == "_" or (sign in (*_OPENING, '"') and is_open)):
            break
        label, run = label + sign, run[1:]
    return run


def _supported(
    rows: Sequence[Row],
    lead: str,
    sep: str,
    spans: dict[int, list[Span]],
    starts: Sequence[int],
    start_rows: frozenset[int],
) -> Notation | None:
    """Returns the notation with the labels that recur; the longest label that nearly always follows a shorter one."""
    labels = {
        place: [key_of(rows[place].text[span.start : span.end]) for span in found] for place, found in spans.items()
    }
    counts = Counter(label for found in labels.values() for label in found)
    if sum(count > 1 for count in counts.values()) < 2:
        return None
    longer: Counter[str] = Counter()
    for found in labels.values():
        longer.update(short for short, long in pairwise(found) if counts[long] > 1)
    labelled: dict[int, Span] = {}
    unlabelled: dict[int, Span] = {}
    kept: Counter[str] = Counter()
    for place, found in labels.items():
        bare = number = int(len(found) > 1 and bool(_TITLE.fullmatch(found[0])))  # `Mr` in `Mr. Lee. Yes.`
        while (
            number + 1 < len(found)
            and counts[found[number + 1]] > 1
            and longer[found[number]] >= _MIN_SHARE * counts[found[number]]
        ):
            number += 1
        if counts[found[number]] > 1 and found[number] and not is_annotation(found[number]):
            labelled[place] = spans[place][number]
            kept[found[number]] += 1
        elif (place in start_rows or rows[place].after_blank) and not is_annotation(found[0]):
            unlabelled[place] = spans[place][bare]
    if 2 * sum(rows[place].num_bold > 0 for place in labelled) > len(labelled):  # of bold labels, only these
        labelled = {place: span for place, span in labelled.items() if rows[place].num_bold > 0}
        unlabelled = {place: span for place, span in unlabelled.items() if rows[place].num_bold > 0}
        kept = Counter(key_of(rows[place].text[span.start : span.end]) for place, span in labelled.items())
    if len(kept) < 2 or kept.total() < 2 * len(kept):
        return None
    firsts = {place for place in {**labelled, **unlabelled} if place in start_rows or rows[place].after_blank}
    num_titled = sum(place in firsts and _is_titled(rows[place].text, span) for place, span in labelled.items())
    is_titled = sep.startswith(".") and num_titled >= max(_MIN_HEADS, _MIN_TITLED_SHARE * len(firsts & labelled.keys()))
    heads, others = (
        {
            place: _head(rows[place].text, span)
            for place, span in found.items()
            if not is_titled or (place in firsts and _is_titled(rows[place].text, span))
        }
        for found in (labelled, unlabelled)
    )
    kept = Counter(key_of(head.name or "") for head in heads.values()) if is_titled else kept
    first, last = min(heads), max(heads)
    num_within = bisect_right(starts, last) - bisect_left(starts, first)
    share = sum(place in start_rows for place in heads) / max(1, num_within)
    is_strong = is_titled or not _WEAK_SIGNS.issuperset(sep) or bool(_DASH.search(sep))
    notation = Notation(lead, sep, heads, others, kept, share, is_strong, is_titled=is_titled)
    if all(head.rest.endswith("|") for head in heads.values()):  # the end of a table's row
        notation.heads, notation.others = (
            {place: head._replace(rest=head.rest.rstrip("| ")) for place, head in found.items()}
            for found in (heads, others)
        )
    return notation


def _is_titled(text: str, span: Span) -> bool:
    return bool(_WITH_TITLE.match(text[span.start : span.end]))


def _is_certain(notation: Notation, rows: Sequence[Row]) -> bool:
    places, counts, num = sorted(notation.heads), notation.labels, len(notation.heads)
    keys = [key_of(notation.heads[place].name or "") for place in places]
    alternate = 2 * sum(before != after for before, after in pairwise(keys)) >= num
    are_few = num >= _MIN_HEADS and 3 * len(counts) <= num and counts.most_common(1)[0][1] <= _MAX_MAIN_SHARE * num
    sizes = [word_count(row.text) for row in rows]
    is_most = 2 * sum(sizes[places[0] :]) >= sum(sizes)
    if not (are_few and alternate and is_most and _have_words(notation, rows)):
        return False
    if not notation.is_strong:
        least = _MIN_SHARE_OF_BLANKS if notation.sep == " " else _MIN_SHARE_OF_SENTENCES
        return notation.share >= least and num >= 8 and 4 * len(counts) <= num and notation.num_named == num
    after_end = sum(place == places[0] or rows[place].after_blank or _ends(rows[place - 1].text) for place in places)
    are_labels = 2 * notation.num_named >= num
    is_wrapped = (
        after_end >= _MIN_SHARE * num
        and num > _MIN_HEADS
        and (
            notation.share >= 0.4
            or (are_labels and num >= (_MIN_TITLED if notation.is_titled else _MIN_LABELS) * len(rows))
        )
    )
    return notation.share >= _MIN_SHARE or is_wrapped


def _ends(text: str) -> bool:
    return ends_sentence(text) or bool(_TIME_ALONE.fullmatch(text))


def _next_row(place: int, rows: Sequence[Row]) -> int:
    """Returns the row after a label and, if there is one, a time."""
    return place + 1 + (place + 1 < len(rows) and bool(_TIME_ALONE.fullmatch(rows[place + 1].text)))


def _have_words(notation: Notation, rows: Sequence[Row]) -> bool:
    """Whether words follow the labels: in the next row if they are alone, else without the same words at their ends."""
    if notation.sep.endswith("\n"):
        following = [_next_row(place, rows) for place in notation.heads]
        followed = sum(place < len(rows) and place not in notation.heads for place in following)
        return followed >= _MIN_SHARE * len(notation.heads) and not _END.fullmatch(notation.sep)
    if is_label_cut(notation.heads):
        return False
    ends = Counter(re.sub(r"\d+", "#", head.rest.rpartition(" ")[2]) for head in notation.heads.values())
    ((end, num),) = ends.most_common(1)
    return num < _MIN_SHARE * len(notation.heads) or not has_words(end)


def _head(text: str, span: Span) -> Head:
    """Returns the head of a row; its time is the first one before the words."""
    time = TIME.search(folded(text[: span.start])) or TIME.search(folded(text[span.end : span.rest]))
    return Head(INDUCED, text[span.start : span.end], clock_time(time.group()) if time else None, text[span.rest :])


def _name_labels(rows: Sequence[Row], notation: Notation) -> set[str]:
    """Returns the labels that have the shape of names and are no words of the text, or recur and are in no other place of it."""
    said = [notation.heads[place].rest if place in notation.heads else row.text for place, row in enumerate(rows)]
    words = {word for text in said for each in text.split() if (word := each.strip(_AROUND_WORDS))}
    folded_words = {word.casefold() for word in words}
    if not notation.is_strong and 2 * sum(map(str.isupper, words)) > len(words):
        words = folded_words  # in a text in capitals, they show no name
    unspaced = {label for label in notation.labels if any(map(is_unspaced, label))}
    within = labels_within("\n".join(said).casefold(), unspaced)  # words of a text without blanks between them
    names = {head.name or "" for head in notation.heads.values()}
    shaped = {key_of(name) for name in names if _has_name_shape(name)}
    return {
        label
        for label, count in notation.labels.items()
        if (label in shaped and (label == label.upper() or label not in words))
        or (count > 2 and label not in folded_words and " " not in label and len(label) > 2)
        if label not in within
    }


def _has_name_shape(name: str) -> bool:
    return name != "I" and (is_label(name) or any(map(_is_upper, name.split())))


def _is_upper(word: str) -> bool:
    return len(word) > 1 and word.isupper()


def is_label_cut(heads: Mapping[int, Head]) -> bool:
    """Whether each label is always followed by the same word, as in `Dr` and `Lee`."""
    following: dict[str, set[str]] = defaultdict(set)
    counts = Counter(key_of(head.name or "") for head in heads.values())
    for head in heads.values():
        following[key_of(head.name or "")].add(head.rest.split(maxsplit=1)[0] if head.rest.strip() else "")
    rests = {head.rest.strip() for head in heads.values()}
    are_different = len(rests) > 2 * len(counts) or not any(" " in rest for rest in rests)
    return (
        are_different
        and len(counts) > 1
        and min(counts.values()) > 1
        and all(len(words) == 1 and "" not in words for words in following.values())
    )
