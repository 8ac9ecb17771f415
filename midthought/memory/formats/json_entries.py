"""Entries of JSON transcripts: speaker, text, start and end under the keys that programs use, and the unit of time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

from midthought.memory.formats.columns import columns_of
from midthought.memory.formats.scripts import is_diarization_label
from midthought.memory.turns import CLOCK, clock_time, without_unusable_characters

Entry = dict[str, Any]

_TEXT_KEYS = (
    "body", "text", "transcript", "transcription", "punctuatedword", "word", "content", "display", "displaytext", "value",
    "utf8", "line", "sentence", "caption", "utterance", "message", "msg", "lexical", "wordsstr", "paragraph", "speech",
)  # fmt: skip
_SPEAKER_KEYS = (
    "userprofile",
    "speakername",
    "voice",
    "speaker",
    "speakerid",
    "speakerlabel",
    "speakertag",
    "speakernumber",
    "spk",
    "participantrole",
    "who",
    "user",
    "username",
    "author",
    "participant",
    "participantname",
    "person",
    "character",
    "sender",
    "role",
    "name",
    "from",
)
_WRITTEN_NAME_KEYS = ("speakername", "speakerlabel", "participantname", "displayname")
_NAME_KEYS = ("realname", "nickname", "displayname", "name", "speakerlabel", "label", "id", "@id")
"""Keys of the name in an object that is a speaker."""
_LISTED_LABEL_KEYS = ("id", "speakerid", "speakerlabel", "speakertag", "speaker", "label")
_LISTED_NAME_KEYS = ("name", "displayname", "speakername", "realname")
"""Keys of the label and of the name in a list of speakers."""
_WORD_KEYS = ("wdlist", "words", "elements", "items", "tokens", "segs", "sentences", "textblocks")
_PAIRS = (
    ("question", "answer"), ("q", "a"), ("frage", "antwort"), ("pregunta", "respuesta"), ("domanda", "risposta"),
    ("pergunta", "resposta"), ("вопрос", "ответ"), ("问", "答"), ("質問", "回答"), ("질문", "답변"),
)  # fmt: skip
_ASKERS = (
    ("asker", "askedby", "questioner", "interviewer"),
    ("responder", "answeredby", "answerer", "interviewee", "respondent", "candidate", "guest", "witness"),
)
"""Keys of those who ask and answer."""
_FIRST_KEYS = ("alternatives", "nbest", "hypotheses")
"""Lists of alternative readings, the best one first."""
_START_KEYS: dict[str, float | None] = {
    "starttime": None, "start": None, "time": None, "begin": None, "from": None, "ts": None, "starttimestamp": None,
    "startoffset": None, "datastart": None, "startsec": 1, "startsecs": 1, "startseconds": 1, "starttimeseconds": 1,
    "startms": 1e-3, "starttimems": 1e-3, "startmilliseconds": 1e-3, "tstartms": 1e-3, "offsetmilliseconds": 1e-3,
    "timestampms": 1e-3, "startinms": 1e-3, "offsetinticks": 1e-7, "offset": None, "timestamp": None, "timestamps": None,
    "toffsetms": 1e-3, "startat": None, "beginat": None, "begintime": None,
}  # fmt: skip
"""Keys and the length of their unit in seconds, None if the key does not say it."""
_END_KEYS: dict[str, float | None] = {
    "endtime": None, "end": None, "endts": None, "to": None, "stop": None, "endoffset": None, "dataend": None, "endsec": 1,
    "endat": None, "endseconds": 1, "endms": 1e-3, "endtimems": 1e-3, "endmilliseconds": 1e-3,
}  # fmt: skip
_TEXT_ORDER, _SPEAKER_ORDER, _WRITTEN_NAME_ORDER, _START_ORDER, _END_ORDER = (
    {key: number for number, key in enumerate(keys)}
    for keys in (_TEXT_KEYS, _SPEAKER_KEYS, _WRITTEN_NAME_KEYS, _START_KEYS, _END_KEYS)
)
_QUESTION_KEYS = frozenset(question for question, _ in _PAIRS)
_WORD_LISTS = frozenset((*_WORD_KEYS, "timestamps"))
_BEST_LISTS = frozenset(_FIRST_KEYS)
_DAYS = re.compile(r"0 days ")
_ISO = re.compile(r"PT(?:(\d{1,4})H)?(?:(\d{1,5})M)?(?:(\d{1,7}(?:\.\d{1,9})?)S)?")
_SECONDS_PER_WORD = 0.4
_MAX_SECONDS_PER_WORD = 40.0
_UNITS = (1.0, 1e-3, 1e-7, 1e-9)


class Time(NamedTuple):
    """A number, and the length of its unit in seconds, None if it is unknown."""

    value: float
    unit: float | None

    def clock(self, unit: float) -> str | None:
        """Returns `HH:MM:SS`, with `unit` if the own one is unknown."""
        seconds = self.value * (self.unit or unit)
        return clock_time(seconds) if math.isfinite(seconds) else None


def folded_keys(entry: Mapping[str, Any]) -> Entry:
    """Returns the entry with keys in lower case and without `_` and `-`; the best of alternative readings is part of it."""
    folded = {_folded(key): value for key, value in entry.items()}
    if isinstance(data := folded.get("data"), dict):  # blocks of an editor: {text, data: {speaker, start}}
        folded |= {key: data[key] for key in ("speaker", "start") if key in data and key not in folded}
    for key in () if _BEST_LISTS.isdisjoint(folded) else _FIRST_KEYS:
        best = folded.get(key)
        if isinstance(best, list) and best and isinstance(best[0], dict):
            folded = {**{key: value for key, value in folded_keys(best[0]).items() if key not in folded}, **folded}
    return folded


@lru_cache(maxsize=1024)  # keys recur
def _folded(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")


def _known(entry: Entry, order: Mapping[str, int]) -> list[str]:
    """Returns the keys of an entry that are in `order`, in this order. Most entries have few keys."""
    found = [key for key in entry if key in order]
    return sorted(found, key=order.__getitem__) if len(found) > 1 else found


def paired(entry: Entry) -> list[Entry]:
    """Returns the two turns of an entry that is a question with its answer, else the entry."""
    if _QUESTION_KEYS.isdisjoint(entry):
        return [entry]
    for keys in _PAIRS:
        said = [entry.get(key) for key in keys]
        if all(isinstance(text, str) and text.strip() for text in said):
            written = [next((entry[key] for key in names if isinstance(entry.get(key), str)), "") for names in _ASKERS]
            labels = [name.strip() or key.capitalize() for name, key in zip(written, keys, strict=True)]
            turns: list[Entry] = [{"speaker": label, "text": text} for label, text in zip(labels, said, strict=True)]
            return [{key: entry[key] for key in _START_KEYS if key in entry} | turns[0], turns[1]]
    return [entry]


def text_of(entry: Entry) -> str:
    """Returns the first non-empty text of an entry with folded keys."""
    for key in _known(entry, _TEXT_ORDER):
        if (text := _joined_parts(entry[key])).strip():
            return without_unusable_characters(text)
    return ""


def _joined_parts(value: object) -> str:
    """Returns a text; of `["It ", {"type": "bold", "text": "rang"}]`, as Telegram writes it, its parts together."""
    if isinstance(value, list) and {str, dict} <= set(map(type, value)):
        return "".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in value)
    return value if isinstance(value, str) else ""


def words_of(entry: Entry) -> list[Entry]:
    """Returns the timed words, or sentences, within an entry, with folded keys."""
    if _WORD_LISTS.isdisjoint(entry):
        return []
    for key in _WORD_KEYS:
        if isinstance(value := entry.get(key), list):
            found = [folded_keys(each) for each in value if isinstance(each, dict)]
            if any(text_of(each) or words_of(each) for each in found):
                return found
    if isinstance(value := entry.get("timestamps"), list):  # IBM: [[word, start, end], …]
        return [
            {"word": each[0], "start": each[1], "end": each[2]}
            for each in value
            if isinstance(each, list) and len(each) == 3 and isinstance(each[0], str)
        ]
    return []


def spoken(word: Entry) -> str:
    """Returns a word with its own blanks; of a word without text, its parts."""
    found = [value for key in _known(word, _TEXT_ORDER) if isinstance(value := word[key], str)]
    if text := next((value for value in found if value.strip()), next((value for value in found if value), "")):
        return without_unusable_characters(text)
    return " ".join(spoken(each) for each in words_of(word))


def speaker_of(entry: Entry, names: Mapping[str, str] | None = None) -> str | None:
    """Returns the name under the first key that has one, or under another key if that one is a label such as `A`; a number
    gives `Speaker 1`. `names` has the names of numbers."""
    found = next(_names(entry, _SPEAKER_ORDER, names), None)
    if found is None or not is_diarization_label(found):
        return found
    return next((name for name in _names(entry, _WRITTEN_NAME_ORDER, names) if not is_diarization_label(name)), found)


def _names(entry: Entry, order: Mapping[str, int], names: Mapping[str, str] | None) -> Iterator[str]:
    for key in _known(entry, order):
        if name := _name_under(key, entry, names):
            yield name


def _name_under(key: str, entry: Entry, names: Mapping[str, str] | None) -> str | None:
    value = entry.get(key)
    if key == "from" and not (isinstance(value, dict) or (isinstance(value, str) and not _time(value, None))):
        return None  # the start
    if isinstance(value, dict):
        folded = folded_keys(value)
        value = next((folded[each] for each in _NAME_KEYS if folded.get(each) not in (None, "")), None)
    if isinstance(value, (int, str)) and not isinstance(value, bool) and names and (name := names.get(str(value))):
        return name
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:
        return f"Speaker {value}"
    return _written_name(value) or None if isinstance(value, str) else None


@lru_cache(maxsize=1 << 12)  # names recur
def _written_name(value: str) -> str:
    return " ".join(without_unusable_characters(value).split()).rstrip(" :：")


def speaker_names(document: object) -> dict[str, str]:
    """Returns the names of labels, from `speakers: [{id, name}]`; of each key whose labels have one name each."""
    listed = document.get("speakers") if isinstance(document, dict) else None
    entries = [folded_keys(each) for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    named = [
        (each, name)
        for each in entries
        if (
            name := next((each[key] for key in _LISTED_NAME_KEYS if isinstance(each.get(key), str) and each[key]), None)
        )
    ]
    names: dict[str, str] = {}
    for key in _LISTED_LABEL_KEYS:
        pairs = {
            (str(each[key]), name) for each, name in named if isinstance(each.get(key), (int, str)) and each[key] != ""
        }
        if len(dict(pairs)) == len(pairs):
            names = dict(pairs) | names
    return names


def start_of(entry: Entry) -> Time | None:
    """Returns the start under the first known key."""
    for key in _known(entry, _START_ORDER):
        if (value := entry[key]) is not None:
            if isinstance(value, list):
                value = value[0] if value else None
            elif isinstance(value, dict) and "from" in value:
                value = value["from"]
            if time := _time(value, _START_KEYS[key]):
                return time
    return None


def end_of(entry: Entry) -> Time | None:
    """Returns the end under the first known key."""
    for key in _known(entry, _END_ORDER):
        if (value := entry[key]) is not None and (time := _time(value, _END_KEYS[key])):
            return time
    span = entry.get("timestamp")
    return _time(span[1], None) if isinstance(span, list) and len(span) == 2 else None


def _time(value: object, unit: float | None) -> Time | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            return None
        return Time(number, unit) if math.isfinite(number) and number >= 0 else None
    if isinstance(value, dict):
        seconds, nanos = value.get("seconds", 0), value.get("nanos", 0)
        if value.keys() & {"seconds", "nanos"} and (whole := _time(seconds, 1.0)) and (part := _time(nanos, 1e-9)):
            return Time(whole.value + part.value * 1e-9, 1.0)
    return _written_time(value.strip(), unit) if isinstance(value, str) else None


def _written_time(text: str, unit: float | None) -> Time | None:
    if not (text[:1].isdecimal() or text.startswith("PT")):
        return None
    text = _DAYS.sub("", text)
    if re.fullmatch(CLOCK, text):
        hours, minutes, seconds = (clock_time(text) or "0:0:0").split(":")
        fraction = re.search(r"[.,](\d{1,9})$", text)
        return Time(
            int(hours) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{fraction[1]}" if fraction else 0), 1.0
        )
    if re.fullmatch(r"\d{1,15}(?:\.\d{1,20})?", text):
        return Time(float(text), unit)
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,20})?s", text):
        return Time(float(text[:-1]), 1.0)
    if text.startswith("PT") and (match := _ISO.fullmatch(text)):
        return Time(int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + float(match[3] or 0), 1.0)
    return None


def unit_of(spans: Sequence[tuple[float, float, int]]) -> float:
    """Returns the length of the unit of time in seconds, from (start, end, number of words) of entries.

    People say a word in about 0.4 seconds. Numbers that would make it more than 40 seconds are milliseconds or smaller.
    """
    per_word = [(end - start) / num_words for start, end, num_words in spans if end > start and num_words]
    if not per_word or (middle := median(per_word)) <= _MAX_SECONDS_PER_WORD:
        return 1.0
    return min(_UNITS, key=lambda unit: abs(math.log(middle * unit / _SECONDS_PER_WORD)))


def entry_lists(document: object) -> Iterator[tuple[tuple[str, ...], list[list[Entry]]]]:
    """Yields every list of objects, by its path. Lists at the same path in several objects are yielded together."""
    found: dict[tuple[str, ...], list[list[Entry]]] = {}
    waiting: list[tuple[tuple[str, ...], object]] = [((), document)]
    while waiting:
        following: list[tuple[tuple[str, ...], object]] = []
        for path, value in waiting:
            if isinstance(value, dict):
                blocks = [each for each in value.values() if isinstance(each, dict)]
                are_entries = len({frozenset(map(str, block)) for block in blocks}) == 1
                if are_entries and len(blocks) == len(value) > 2:  # `{"block-1": {…}, "block-2": {…}, …}`
                    found.setdefault(path, []).append(blocks)
                following += [
                    ((*path, str(key)), each) for key, each in value.items() if isinstance(each, (dict, list))
                ]
            elif isinstance(value, list):
                entries = [each for each in value if isinstance(each, dict)]
                if entries and 2 * len(entries) >= len(value):
                    is_choice = bool(path) and path[-1].lower() in _FIRST_KEYS
                    found.setdefault(path, []).append(entries[:1] if is_choice else entries)
                    following += [(path, each) for each in (entries[:1] if is_choice else entries)]
                lists = [each for each in value if isinstance(each, list)]
                if names := columns_of(lists) if len(lists) == len(value) else {}:  # `[start, end, speaker, text]`
                    rows = [
                        {names.get(place, f"column{place}"): cell for place, cell in enumerate(row)} for row in lists
                    ]
                    found.setdefault(path, []).append(rows)
                following += [(path, each) for each in lists] if len(path) < 12 else []
        waiting = [item for item in following if len(item[0]) <= 12]
    yield from found.items()
