"""Signs of all scripts by their Unicode properties: colons, digits, brackets, shapes of names, ends of sentences."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Set
from functools import lru_cache

import regex

MAX_NAME_LETTERS = 80
_MAX_NAME_WORDS = 6
_COLONS = ":：﹕︰꞉∶፦፥"
_OPENING, _CLOSING = "【〔［〖", "】〕］〗"

_NAME_WORD = regex.compile(
    r"""["'“”‘’«»]?[\p{Lu}\p{Lt}\p{Lo}][\p{L}\p{M}\p{N}.'’_·‧・\-/]*["'“”‘’«»]?[,、]?|[#№]?\p{N}+|--|[&+/–—-]"""
    r"|(?:de|da|del|der|den|di|du|la|le|van|von|bin|ibn|al|and|und|et|y|e|of|from|the|in|at|with|to)|\([^()]{1,40}\),?"
)
_PARTICLES = frozenset(
    {"al", "bin", "de", "del", "den", "der", "di", "du", "la", "le", "ten", "ter", "van", "von", "zu"}
)
"""First words of names such as `van der Berg`."""
_NOTE = regex.compile(r"(?<=\S)\s?[(（][^()（）]{1,40}[)）]$")
_CHINESE_DATE = regex.compile(r"\d{4}年")
_PREPOSITIONS = frozenset({"and", "at", "by", "for", "from", "in", "of", "the", "to", "with"})
"""Words that no name ends with."""
UNSPACED_LETTER = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
"""For the package `regex`: a letter of a script that writes no blanks between words."""
_UNSPACED = regex.compile(UNSPACED_LETTER)
_MAX_UNSPACED_LETTERS = 14
_UNSPACED_LETTERS_PER_WORD = 2
_VOICES = (
    "speaker|spk|spkr|sprecher|spreker|talare|puhuja|locuteur|interlocuteur|intervenant|hablante|interlocutor|ponente|orador|"
    "falante|parlante|interlocutore|pembicara|penutur|mówca|konuşmacı|participant|teilnehmer|person|voice|channel|"
    "说话人|說話人|發言人|发言人|讲话人|講者|話者|话者|スピーカー|화자|참석자|발화자|спикер|דובר|متحدث|المتحدث|वक्ता"
)
"""Words before a number in labels of voices, in many languages."""
_LABEL = regex.compile(
    rf"(?i)(?:{_VOICES}|sprecherin|guest|host|"
    r"采访[者人]|採訪者|受[访訪]者|被采访[者人]|被访者|[访訪]谈者|主持人|嘉[宾賓]|聞き手|話し手|면담자|구술자|진행자|"
    r"интервьюер|респондент|entrevistadora?|entrevistad[oa]|intervistatore|intervistat[oa]|enquêteur|enquêtée?|befragte[rs]?|"
    r"assistant|caller|interviewer|interviewee|moderator|user|unknown|unidentified|audience|male|female|man|woman)"
    r"(?:[ _#\-]?(?:speaker|voice|member))?[ _#\-]?(?:\d{1,3}(?:-\p{L}{1,20})?|[a-z])?"
)
_DIARIZED = regex.compile(
    rf"(?i)(?:(?:{_VOICES}|s)[ _#\-]*\d{{1,3}}|(?:{_VOICES})(?:[ _#\-]+[a-z]|(?-i:(?<=[a-z])[A-Z]))|s[ _#\-]+[a-z])"
)
_SENTENCE_END = regex.compile(r"(?:[\p{Sentence_Terminal}…:–—\-][\p{Pf}\p{Pe}\"'’”]*|[\p{Pe}\p{Pf}])\s*$")
_LETTER = regex.compile(r"\p{L}")


def folded(text: str) -> str:
    """Returns the text, of the same length, with ASCII signs for digits, colons, brackets and blanks of other scripts.

    Marks of the writing direction, pictures and symbols become blanks, wide blanks become tabs.
    """
    return text if text.isascii() else text.translate(_FOLDED)


class _FoldedSigns(dict[int, str]):
    """A translation table that computes each sign at its first use."""

    def __missing__(self, code: int) -> str:
        self[code] = sign = _folded_sign(chr(code))
        return sign


_FOLDED = _FoldedSigns((code, chr(code)) for code in range(128))


def _folded_sign(sign: str) -> str:
    if sign in _COLONS:
        return ":"
    if sign in _OPENING or sign in _CLOSING:
        return "[" if sign in _OPENING else "]"
    if sign == "\u3000":
        return "\t"  # a wide blank separates columns
    category = unicodedata.category(sign)
    if category == "Nd":
        return str(unicodedata.decimal(sign))
    is_blank = category == "Zs" or (category == "So" and sign != "№") or sign in _INVISIBLE
    if is_blank or unicodedata.bidirectional(sign) in _DIRECTIONS:
        return " "
    return chr(ord(sign) - 0xFEE0) if "\uff01" <= sign <= "\uff5e" and not sign.isalpha() else sign


_INVISIBLE = "\u200b\u200d\u200e\u200f\u061c\u2060\ufe0f"
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def looks_like_name(text: str) -> bool:
    """True for one to six words that are capitalized or of a script without case, except particles such as `van`:
    `Mireille B. Reece, Psy.D`."""
    return len(text) <= MAX_NAME_LETTERS and _looks_like_name(text)


@lru_cache(maxsize=1 << 13)  # labels recur
def _looks_like_name(text: str) -> bool:
    words = _NOTE.sub("", text).split()
    if not 1 <= len(words) <= _MAX_NAME_WORDS or not _LETTER.search(text):
        return False
    if words[-1].lower() in _PREPOSITIONS or _CHINESE_DATE.match(text):
        return False
    first = words[0].lstrip("\"'“”‘’«»([#")
    is_particle = len(words) > 1 and first in _PARTICLES and words[-1][0].isupper()
    if not first or (first[0].islower() and not is_particle) or not (first[0].isalpha() or first[0].isdigit()):
        return False
    if len(_UNSPACED.findall(text)) > _MAX_UNSPACED_LETTERS:
        return False
    return all(_NAME_WORD.fullmatch(word) for word in words)


def is_role(text: str) -> bool:
    """True for labels such as `Speaker 1`, `SPEAKER_00`, `interviewer`."""
    text = text.strip()
    return _is_role(text) if len(text) <= MAX_NAME_LETTERS else bool(_DIARIZED.fullmatch(text))


@lru_cache(maxsize=1 << 13)  # labels recur
def _is_role(text: str) -> bool:
    return bool(_LABEL.fullmatch(text) or _DIARIZED.fullmatch(text))


def is_diarization_label(text: str) -> bool:
    """True for labels that stand for a voice, not a name: `SPEAKER_00`, `spk_1`, `Speaker A`, `S2`."""
    if len(text) > MAX_NAME_LETTERS:
        return bool(_DIARIZED.fullmatch(text.strip()))
    return _is_voice(text)


@lru_cache(maxsize=1 << 13)  # labels recur
def _is_voice(text: str) -> bool:
    return bool(_DIARIZED.fullmatch(text.strip())) or (len(text) == 1 and text.isupper())


def ends_sentence(text: str) -> bool:
    """True if the text is empty or ends as a sentence does, in any script."""
    return not text.strip() or bool(_SENTENCE_END.search(text[-20:]))


def is_unspaced(sign: str) -> bool:
    """True for a character of a script that writes no blanks between words."""
    return bool(_UNSPACED.match(sign))


def labels_within(text: str, labels: Set[str]) -> set[str]:
    """Returns the labels, of a script without blanks between words, that the text has at any place, in one pass."""
    sizes: dict[str, set[int]] = defaultdict(set)
    for label in labels:
        sizes[label[0]].add(len(label))
    return {
        part
        for place, sign in enumerate(text if labels else "")
        for size in sizes.get(sign, ())
        if (part := text[place : place + size]) in labels
    }


def word_count(text: str) -> int:
    """Returns the number of words; two letters of a script without blanks between words count as one."""
    return len(text.split()) + (0 if text.isascii() else len(_UNSPACED.findall(text)) // _UNSPACED_LETTERS_PER_WORD)
