"""Scripts that write no blanks between words, counts of words, and labels of voices."""

from __future__ import annotations

import regex

UNSPACED_LETTER = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
"""For the package `regex`: a letter of a script that writes no blanks between words."""
_UNSPACED = regex.compile(UNSPACED_LETTER)
_UNSPACED_LETTERS_PER_WORD = 2
_VOICE = regex.compile(r"(?i)(?:speaker|spk|s)[ _#\-]*\d{1,3}|speaker[ _#\-]+[a-z]|(?-i:[A-Z])")


def is_diarization_label(text: str) -> bool:
    """True for labels that stand for a voice, not a name: `SPEAKER_00`, `spk_1`, `Speaker A`, `S2`, `A`."""
    return bool(_VOICE.fullmatch(text.strip()))


def word_count(text: str) -> int:
    """Returns the number of words; two letters of a script without blanks between words count as one."""
    return len(text.split()) + (0 if text.isascii() else len(_UNSPACED.findall(text)) // _UNSPACED_LETTERS_PER_WORD)
