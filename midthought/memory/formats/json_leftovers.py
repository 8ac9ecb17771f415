"""What a JSON document has besides the list that was read: labels of speakers that were not used, text that is in no turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from midthought.memory.formats.entry_texts import names_translation
from midthought.memory.formats.scripts import is_diarization_label
from midthought.memory.turns import Segment

_MIN_LABELS = 2
_MIN_TEXT_WORDS = 5
_MAX_MISSING_SHARE = 0.4
"""Share of the different words of a document's texts that may be in no turn: summaries and titles have few others."""

_MAX_MISSING_UNNAMED = 0.25
"""The same if no turn has a speaker: other texts may be what the other one says."""


def leftover_doubts(document: object, segments: Sequence[Segment]) -> list[str]:
    """Returns a sentence for labels such as `SPEAKER_01` if no turn has a speaker, and one for words of other texts."""
    found = list(_strings(document))
    doubts = []
    labels = [text for key, text in found if _is_speaker(key, text)]
    if len(labels) >= _MIN_LABELS and not any(segment.speaker for segment in segments):
        doubts.append(f"labels of speakers were not used, such as {labels[0][:40]!r}")
    read = {word for segment in segments for word in _words(segment.text)}
    others: dict[str, set[str]] = {}
    for key, text in found:
        if len(text.split()) >= _MIN_TEXT_WORDS and not names_translation(key) and (missing := _words(text) - read):
            others.setdefault(key, set()).update(missing)
    missing = set().union(*others.values())
    is_named = any(segment.speaker for segment in segments)
    if len(missing) > (_MAX_MISSING_SHARE if is_named else _MAX_MISSING_UNNAMED) * (len(read) + len(missing)):
        most = max(others, key=lambda key: len(others[key]))
        doubts.append(f"text of other keys was not read, such as {most!r}")
    return doubts


def _is_speaker(key: str, text: str) -> bool:
    return 0 < len(text) <= 60 and ((len(text) > 1 and is_diarization_label(text)) or "speaker" in key.lower())


def _words(text: str) -> set[str]:
    return {word.strip(".,;:!?\"'()").lower() for word in text.split()}


def _strings(document: object) -> Iterator[tuple[str, str]]:
    """Yields every string with the last key on its way, without recursion."""
    waiting: list[tuple[str, object]] = [("", document)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, dict):
            waiting += [(str(name), each) for name, each in value.items()]
        elif isinstance(value, list):
            waiting += [(key, each) for each in value]
