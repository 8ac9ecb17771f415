"""JSON of recognisers, editors and podcast apps: of all lists in the document, the one that explains most is read."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

from midthought.memory.formats.columns import names_speakers, speaker_key, text_key
from midthought.memory.formats.entry_doubts import entry_doubts, text_doubts
from midthought.memory.formats.entry_texts import first_language, names_translation, tidied
from midthought.memory.formats.json_columns import inner_transcript, is_only_text, with_rows
from midthought.memory.formats.json_entries import (
    Entry,
    Time,
    end_of,
    entry_lists,
    folded_keys,
    paired,
    speaker_names,
    speaker_of,
    spoken,
    start_of,
    text_of,
    unit_of,
    words_of,
)
from midthought.memory.formats.json_leftovers import leftover_doubts
from midthought.memory.formats.json_repair import parsed
from midthought.memory.formats.json_texts import labelled_lines, longest_texts, read_lines, read_text, turns_within
from midthought.memory.formats.line_candidates import share_in_order
from midthought.memory.formats.reading import Reading, Skipped
from midthought.memory.formats.registry import transcript_format
from midthought.memory.formats.scripts import is_unspaced, word_count
from midthought.memory.markup import mark_times
from midthought.memory.turns import UNKNOWN_SPEAKER, Segment, without_unusable_characters

_START = re.compile(r"\s*(?:\{|\[\s*(?:[\[\]{\"]|-?\d+\s*[],]|null|true|false))")
_STRONG_START = re.compile(r"\s*(?:\{\s*(?:\"|\})|\[\s*(?:\{|\]))")
"""A start that is JSON's in a file of any suffix; `[1]` and `[null` are not."""
_KNOWN_LISTS = ("content", "segments", "transcription", "chunks", "utterances")
_FULL_TEXTS = ("text", "transcript", "results")
_MAX_FIELD_LETTERS = 300
_MAX_CHANNELS = 8
_MIN_ENTRIES = 4
_MIN_INNER_SHARE = 0.5
"""Of the words of a transcript under a key of its own, that a list without speakers must have to be read instead."""


class _Candidate(NamedTuple):
    path: tuple[str, ...]
    segments: list[Segment]
    num_words: int
    num_entries: int
    named: float
    """Share of the segments with a speaker."""
    timed: float
    inferred: str | None
    """The unknown key that was taken for the speaker."""
    text_key: str | None
    """The unknown key that was taken for the text."""
    are_articles: bool
    """Whether most entries have a title of their own."""
    entries: list[Entry]

    def rank(self) -> tuple[bool, bool, int]:
        return self.named >= 0.5, self.timed >= 0.5, -self.num_entries


def _is_json(text: str, suffix: str) -> bool:
    return bool(_STRONG_START.match(text) or (suffix == ".json" and _START.match(text)))


@transcript_format(
    "JSON",
    suffixes=(".json",),
    remedy="give it {'speakers', 'episode', 'content': [{'speaker', 'transcript', 'time'}]} or {'segments': [...]}",
    shown_by=_is_json,
)
def read_json(text: str) -> Reading:
    """Reads the list with the most words, among these one with speakers and times, with the fewest entries.

    So it reads `{speakers, episode, content: [{speaker, transcript, time}]}`, segments of podcast apps, Whisper, WhisperX,
    whisper.cpp, transformers and editors, and the results of AssemblyAI, Deepgram, AWS Transcribe, Google, Azure, Rev and
    others; also one object per line, and `{text}` alone. The unit of time follows from keys, or from the time per word.
    """
    return read_document(*parsed(text))


def read_document(document: Any, doubts: tuple[str, ...] = ()) -> Reading:
    """Reads a parsed document, as `read_json` does."""
    try:
        document = with_rows(document)
        candidates = _candidates(document)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if isinstance(document, list) and (lines := read_lines(document)):
        return lines
    title, header = _fields(document)
    best = _best(candidates)
    if best is None:
        folded = folded_keys(document) if isinstance(document, dict) else {}
        full = text_of(folded) or (inner_transcript(document) or ("", ""))[1]
        doubts = (*doubts, *text_doubts(full, is_named=any(map(folded.get, _FULL_TEXTS)))) if full else doubts
        if not full and isinstance(document, dict) and (texts := longest_texts(document)):
            full = "\n".join(map(document.__getitem__, texts))
            what = " and ".join(map(repr, texts[:1] + texts[1:][-1:]))
            doubts = (*doubts, f"the value of {what} is taken for the text")
        if not full:
            raise ValueError(_refusal(document))
        return _with_fields(read_text(full), title, header, doubts)
    num_read = sum(word_count(segment.text) for segment in best.segments)
    if (
        best.named < 0.5
        and (inner := inner_transcript(document))
        and num_read < _MIN_INNER_SHARE * word_count(inner[1])
    ):
        return _with_fields(read_text(inner[1]), title, header, doubts)
    said = [segment.text for segment in best.segments if segment.text]
    is_bare = best.named == best.timed == 0
    joined = "\n\n".join(said)
    if turns := turns_within(joined) if len(said) == 1 else labelled_lines(joined) if is_bare else None:
        return _with_fields(turns, title, header, doubts)
    confidence = (
        0.97 if best.named >= 0.5 and best.timed >= 0.5 else 0.9 if best.timed >= 0.5 or best.named >= 0.5 else 0.8
    )
    if best.inferred and not names_speakers(best.inferred):
        doubts = (*doubts, f"the values of {best.inferred!r} are taken for the speakers")
    if best.are_articles:
        doubts = (*doubts, "its entries have titles, as articles have, not turns")
    if best.text_key and min(best.named, best.timed) < 0.5 and not is_only_text(best.text_key, best.entries):
        doubts = (*doubts, f"the values of {best.text_key!r} are taken for the text")
    doubts = (
        *doubts,
        *leftover_doubts(document, best.segments),
        *entry_doubts(best.segments, best.entries),
    )
    order = share_in_order([segment.time for segment in best.segments if segment.time])
    if order < 0.95:
        doubts = (*doubts, f"{1 - order:.0%} of the times go back")
    others = [other for other in candidates if other.path[: len(best.path)] != best.path and other.num_words > 0]
    skipped = tuple(
        Skipped(f"{other.num_entries} entries of {'.'.join(other.path)!r}", "another list than the transcript")
        for other in others
        if best.path[: len(other.path)] != other.path
    )
    return Reading(
        title, tidied(best.segments), header, skipped, round(max(0.05, confidence - 0.3 * len(doubts)), 3), doubts
    )


def _refusal(document: object) -> str:
    entries = [folded_keys(entry) for _, parts in entry_lists(document) for part in parts for entry in part]
    if sum(bool(speaker_of(entry) and start_of(entry)) for entry in entries) >= _MIN_ENTRIES:
        return "its entries say who speaks when, but have no words"
    if isinstance(document, list) and not any(isinstance(each, dict) for each in document):
        return "the entries of the list are not all objects"
    if isinstance(document, dict):
        for key in _KNOWN_LISTS:
            if isinstance(document.get(key), list) and document[key] and not isinstance(document[key][0], dict):
                return f"the entries of {key!r} are not all objects"
    return "the JSON has no list of entries with text under a known key, such as 'content' or 'segments'"


def _with_fields(
    reading: Reading, title: str | None, header: tuple[tuple[str, str], ...], doubts: tuple[str, ...]
) -> Reading:
    """Returns the reading of a text within the document, with the document's fields and doubts."""
    reading = reading._replace(title=title or reading.title, header=header + reading.header)
    return reduce(lambda each, doubt: each.doubted(doubt, 0.3), doubts, reading)


def _fields(document: object) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    """Returns the title and the document's short values."""
    if not isinstance(document, dict):
        return None, ()
    values = {
        str(key): without_unusable_characters(value)
        for key, value in document.items()
        if isinstance(value, str) and 0 < len(value) <= _MAX_FIELD_LETTERS and key not in _FULL_TEXTS
    }
    title = values.get("episode") or values.get("title")
    return title, tuple(values.items())


def _candidates(document: object) -> list[_Candidate]:
    names = speaker_names(document)
    lists = list(entry_lists(document))
    spans = _speaker_spans(lists, names)
    found: list[_Candidate] = []
    for path, parts in lists:
        entries = [[each for entry in part for each in paired(folded_keys(entry))] for part in parts]
        if (
            path
            and path[-1].lower() in ("speakers", "participants")
            and not any(start_of(e) for p in entries for e in p)
            and len(told := [speaker_of(e) for p in entries for e in p]) == len(set(told))
        ):
            continue
        every = [entry for part in entries for entry in part]
        key = None if any(speaker_of(entry) or words_of(entry) for entry in every) else speaker_key(every)
        key = None if key and text_of({key: "x"}) else key
        if key:
            entries = [[{**entry, "speaker": entry.get(key)} for entry in part] for part in entries]
        text = None if any(text_of(entry) or words_of(entry) for entry in every) else text_key(every)
        language = first_language(every) if text and names_translation(text) else None
        text = language or text
        is_turn = language or any(speaker_of(entry) or start_of(entry) for entry in every)
        if text and ((len(every) >= _MIN_ENTRIES and is_turn) or is_only_text(text, every)):
            entries = [[{**entry, "text": entry.get(text)} for entry in part] for part in entries]
        are_channels = len(entries) == 2 or "channel" in ".".join(path).lower()
        merged = _merged(entries, are_channels=are_channels)
        segments = _segments(merged, names, spans, begins=path[-1:] == ("content",))
        said = [segment for segment in segments if segment.text]
        if said:
            num_words = sum(any(map(str.isalnum, word)) for segment in said for word in segment.text.split())
            named = sum(segment.speaker is not None for segment in said) / len(said)
            timed = sum(segment.time is not None for segment in said) / len(said)
            are_articles = 2 * sum(bool(each.get("title") or each.get("headline")) for each in every) > len(every) > 1
            text = None if language else text
            size = sum(map(len, parts))
            found.append(_Candidate(path, segments, num_words, size, named, timed, key, text, are_articles, merged))
    return found


def _best(candidates: Sequence[_Candidate]) -> _Candidate | None:
    most = max((each.num_words for each in candidates), default=0)
    eligible = [each for each in candidates if each.num_words >= 0.8 * most]
    return max(eligible, key=_Candidate.rank, default=None)


def _speaker_spans(
    lists: Sequence[tuple[tuple[str, ...], list[list[Entry]]]], names: Mapping[str, str]
) -> list[tuple[float, str]]:
    """Returns (start, speaker), sorted, of the list that has speakers and times but no words."""
    best: list[tuple[float, str]] = []
    for _, parts in lists:
        if any(text_of(folded_keys(entry)) for part in parts for entry in part):
            continue
        entries = [folded_keys(entry) for part in parts for entry in part]
        spans = [
            (start.value * (start.unit or 1), speaker)
            for entry in entries
            if (speaker := speaker_of(entry, names)) and (start := _first_start(entry))
        ]
        best = max(best, sorted(spans), key=len)
    return best


def _first_start(entry: Entry) -> Time | None:
    """Returns the start of an entry, or of the first item in it."""
    items = entry.get("items")
    first = items[0] if isinstance(items, list) and items and isinstance(items[0], dict) else {}
    return start_of(entry) or start_of(folded_keys(first))


def _merged(parts: Sequence[Sequence[Entry]], *, are_channels: bool) -> list[Entry]:
    """Returns the entries of several lists as one: of channels by time, and once if the last list repeats the others."""
    if len(parts) < 2:
        return [entry for part in parts for entry in part]
    said = [[word for entry in part for word in text_of(entry).lower().split()] for part in parts]
    is_named = [any(speaker_of(entry) for entry in part) for part in parts]
    if is_named[-1] and not any(is_named[:-1]) and _repeats(said[-1], said[:-1]):
        return list(parts[-1])
    starts = [[time.value for entry in part if (time := start_of(entry))] for part in parts]
    are_channels &= all(len({speaker_of(entry) for entry in part}) < 2 for part in parts)  # else: several transcripts
    overlap = are_channels and all(starts) and any(after[0] < before[-1] for before, after in pairwise(starts))
    if not overlap or len(parts) > _MAX_CHANNELS:
        return [entry for part in parts for entry in part]
    channels = [{"speaker": f"Channel {number}", **entry} for number, part in enumerate(parts) for entry in part]
    return sorted(channels, key=_start_value)


def _repeats(last: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether the last list has the words of all others again, but for a few, as Google's list with speakers."""
    words = [word for part in others for word in part]
    return abs(len(last) - len(words)) <= 0.02 * len(words) and last[:5] == words[:5]


def _start_value(entry: Entry) -> float:
    time = start_of(entry)
    return time.value if time else 0.0


def _segments(
    entries: Sequence[Entry], names: Mapping[str, str], spans: Sequence[tuple[float, str]], *, begins: bool
) -> list[Segment]:
    unit = _unit(entries)
    if len(entries) > 1 and not any(words_of(entry) for entry in entries) and _are_words(entries):
        return list(_timed_words(None, None, entries, names, spans, unit))
    segments: list[Segment] = []
    starts: list[int] = []
    if any(speaker_of(entry, names) for entry in entries):  # null is not the speaker before
        entries = [e | {"speaker": UNKNOWN_SPEAKER} if e.get("speaker", "") is None else e for e in entries]
    for entry in entries:
        starts.append(len(segments))
        segments += _entry_segments(entry, names, spans, unit, begins=begins)
    is_named = len(segments) > 1 and segments[0].speaker is None and segments[-1].speaker is not None
    if is_named and _repeats(_words(segments[starts[-1] :]), [_words(segments[: starts[-1]])]):
        return list(
            _entry_segments(entries[-1], names, spans, unit, begins=begins)
        )  # Google repeats all words with speakers
    return segments


def _words(segments: Sequence[Segment]) -> list[str]:
    return [word.lower() for segment in segments for word in segment.text.split()]


def _entry_segments(
    entry: Entry, names: Mapping[str, str], spans: Sequence[tuple[float, str]], unit: float, *, begins: bool
) -> Iterator[Segment]:
    speaker, start = speaker_of(entry, names), start_of(entry)
    timed, words = words_of(entry), text_of(entry)
    has_speakers = speaker is None and (any(speaker_of(word, names) for word in timed) or bool(spans and timed))
    if timed and (not words or has_speakers):
        yield from _timed_words(speaker, start, timed, names, spans, unit)
    elif words.strip() or begins:
        start = start or next((time for word in timed if (time := start_of(word))), None)
        yield Segment(speaker, mark_times(words), start.clock(unit) if start else None, begins_turn=begins)


def _are_words(entries: Sequence[Entry]) -> bool:
    texts = [text for entry in entries if (text := text_of(entry).strip())]
    single = sum(" " not in text for text in texts)
    return (
        len(texts) > 2
        and single >= 0.9 * len(texts)
        and (len(texts) > 40 or any("word" in e or "alternatives" in e or "type" in e for e in entries))
    )


def _unit(entries: Sequence[Entry]) -> float:
    """Returns the unit of times whose key does not say it."""
    items = [item for entry in entries for item in (entry, *words_of(entry))]
    spans: list[tuple[float, float, int]] = []
    starts: list[tuple[float, int]] = []
    for item in items:
        start = start_of(item)
        if start and start.unit is None and (num_words := len(text_of(item).split())):
            starts.append((start.value, num_words))
            if (end := end_of(item)) and end.unit is None:
                spans.append((start.value, end.value, num_words))
    if not spans:
        spans = [(start, after, num_words) for (start, num_words), (after, _) in pairwise(starts)]
    return unit_of(spans)


def _timed_words(
    speaker: str | None,
    start: Time | None,
    timed: Sequence[Entry],
    names: Mapping[str, str],
    spans: Sequence[tuple[float, str]],
    unit: float,
) -> Iterator[Segment]:
    """Joins consecutive words of one speaker to a segment; words include their own blanks, or none at all."""
    texts = [spoken(word) for word in timed]
    has_blanks = any(text != text.strip() for text in texts)
    running: list[str] = []
    who: str | None = speaker
    when = start
    for word, text in zip(timed, texts, strict=True):
        if not text:
            continue
        time = start_of(word)
        glued = _is_punctuation(word)
        name = speaker_of(word, names) or speaker or _speaker_at(time, spans, unit)
        if running and name is not None and name != who:
            yield Segment(who, _joined(running), when.clock(unit) if when else None)
            running, when = [], time
        who = name if name is not None else who
        when = when or time
        running.append(text if glued or has_blanks or not running or _touch(running[-1], text) else f" {text}")
    if "".join(running).strip():
        yield Segment(who, _joined(running), when.clock(unit) if when else None)


def _joined(words: Sequence[str]) -> str:
    return mark_times("".join(words))


def _is_punctuation(word: Entry) -> bool:
    return str(word.get("type", "")).lower() in ("punctuation", "punct")


def _touch(before: str, after: str) -> bool:
    """Whether no blank stands between two words, as in Chinese and Japanese."""
    return bool(before) and is_unspaced(before[-1]) and is_unspaced(after[0])


def _speaker_at(time: Time | None, spans: Sequence[tuple[float, str]], unit: float) -> str | None:
    if time is None or not spans:
        return None
    place = bisect_right(spans, (time.value * (time.unit or unit) + 1e-6, "\U0010ffff"))
    return spans[max(0, place - 1)][1]
