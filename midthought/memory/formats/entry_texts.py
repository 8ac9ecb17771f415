"""Texts of entries with keys: which key has a translation, and signs in a text that are no words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from midthought.memory.turns import UNKNOWN_SPEAKER, Segment

_LANGUAGES = (
    "ar|bg|bn|ca|cs|da|de|el|en|es|et|eu|fa|fi|fr|he|hi|hr|hu|id|is|it|ja|ko|lt|lv|ms|nb|nl|no|pl|pt|ro|ru|sk|sl|sr|sv|sw|ta|th|"
    "tl|tr|uk|ur|vi|zh|arabic|chinese|czech|danish|dutch|english|finnish|french|german|greek|hebrew|hindi|hungarian|indonesian|"
    "italian|japanese|korean|norwegian|polish|portuguese|romanian|russian|spanish|swedish|thai|turkish|ukrainian|vietnamese"
)
_LANGUAGE = re.compile(
    rf"(?i)(?:(?:text|sub|subtitle|sentence|transcript)[_-]?)?(?:{_LANGUAGES})(?:[_-](?:[a-z]{{2}}|hans|hant))?"
)
_TRANSLATION = re.compile(
    r"(?i)translat(?:ion|ed)s?(?:[_-]?(?:text|sentence))?|(?:text|sentence)[_-]?translat(?:ion|ed)"
)
_BOLD = re.compile(r"(?<!\S)\*\*(?=\S)|(?<=\S)\*\*(?=[\s.,;:!?)]|$)")


@lru_cache(maxsize=1024)  # keys recur
def names_translation(key: str) -> bool:
    """Whether a key names a language, or says that its values are translations."""
    return bool(_LANGUAGE.fullmatch(key) or _TRANSLATION.fullmatch(key))


def first_language(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the first of several keys that name languages, if all entries have texts under them."""
    keys = [key for key in entries[0] if _LANGUAGE.fullmatch(key)] if entries else []
    are_texts = all(isinstance(entry.get(key), str) for entry in entries for key in keys)
    return keys[0] if len(keys) > 1 and are_texts else None


def tidied(segments: Sequence[Segment]) -> list[Segment]:
    """Returns the segments without signs of bold text, and without the speaker's label at the start of the text."""
    texts = [_tidied(segment.speaker, segment.text) for segment in segments]
    return [
        segment if text == segment.text else replace(segment, text=text)
        for segment, text in zip(segments, texts, strict=True)
    ]


def _tidied(speaker: str | None, text: str) -> str:
    text = _BOLD.sub("", text) if "**" in text and len(_BOLD.findall(text)) > 1 else text  # else: a sign of a program
    if speaker and speaker != UNKNOWN_SPEAKER and text.startswith(speaker):
        rest = text[len(speaker) :].lstrip()
        return rest[1:].lstrip() if rest[:1] in (":", "：") and rest[1:].strip() else text
    return text
