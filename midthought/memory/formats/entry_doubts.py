"""Signs that entries with speakers, times and texts are no turns of one conversation: each is reported as a sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from midthought.memory.formats.json_entries import Entry, speaker_of, spoken, start_of
from midthought.memory.formats.scripts import is_role, word_count
from midthought.memory.turns import UNKNOWN_SPEAKER, Segment

_CODE = re.compile(r"(?=\S*[\d_/=%])[\x21-\x7e]{2,}")
_ADDRESS = re.compile(r"(?:^|\W)(?:https?://|www\.)\S+")
_MAIL = frozenset({"to", "subject"})
_MIN_TURNS = 4
_MIN_WORDS = 5
_MANY_LABELS = 25
_MIN_RESTARTS = 2
_START_SHARE = 0.1


def entry_doubts(segments: Sequence[Segment], entries: Sequence[Entry]) -> list[str]:
    """Returns the sentences about entries with folded keys and the segments that were read from them."""
    texts = [segment.text for segment in segments if segment.text.strip()]
    labels = Counter(each.speaker for each in segments if each.speaker and each.speaker != UNKNOWN_SPEAKER)
    doubts = []
    if len(labels) > _MANY_LABELS and 3 * len(labels) > labels.total():
        doubts.append(f"{len(labels)} speaker labels for {labels.total()} entries")
    elif labels.total() == len(labels) >= _MIN_TURNS and not all(map(is_role, labels)):
        doubts.append("every speaker label occurs once")
    codes = [text for text in texts if _CODE.fullmatch(text.strip()) or _is_link(text)]
    if len(codes) >= _MIN_TURNS and 2 * len(codes) > len(texts):
        doubts.append(f"{len(codes)} of {len(texts)} texts are no words, such as {codes[0][:30]!r}")
    if 2 * sum(entry.keys() >= _MAIL for entry in entries) > len(entries):
        doubts.append("its entries may be e-mails: they have a receiver and a subject")
    num_words = sum(map(word_count, texts))
    has_more = labels or any(segment.time for segment in segments)
    if num_words < _MIN_WORDS and not has_more:
        doubts.append(f"its text has {num_words} words")
    elif not has_more and 2 * sum(word_count(text) == 1 for text in texts) > len(texts) >= _MIN_TURNS:
        doubts.append("most of its texts are single words without a time")
    starts = [start_of(entry) for entry in entries]
    num_without_words = sum(
        start is not None and not spoken(entry) and bool(speaker_of(entry))
        for entry, start in zip(entries, starts, strict=True)
    )
    if num_without_words >= _MIN_TURNS and num_without_words > len(texts):
        doubts.append(f"{num_without_words} entries have a speaker and no words")
    num_again = _num_restarts([time.value for time in starts if time])
    if num_again >= _MIN_RESTARTS:
        doubts.append(f"its times start again {num_again} times, as in several transcripts")
    return doubts


def _is_link(text: str) -> bool:
    """Whether a text is an address, perhaps with its title."""
    rest, num_addresses = _ADDRESS.subn(" ", text)
    return num_addresses > 0 and word_count(rest) < _MIN_WORDS


def text_doubts(text: str, *, is_named: bool) -> tuple[str, ...]:
    """Returns a sentence about the only text of a document that may be a title or a path. `is_named`: its key says that it is a
    transcript."""
    if _CODE.fullmatch(text.strip()):
        return (f"its text is no words: {text.strip()[:30]!r}",)
    num_words = word_count(text)
    return () if is_named or num_words >= _MIN_WORDS else (f"its text has {num_words} words",)


def _num_restarts(times: Sequence[float]) -> int:
    """Returns how often a time near the start follows a later one."""
    early = _START_SHARE * max(times, default=0)
    return sum(after < min(before, early) for before, after in pairwise(times))
