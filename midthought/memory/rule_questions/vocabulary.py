"""How often words occur in a memory: which are informative, which are names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from midthought.memory.rule_questions.english import ABBREVIATIONS, CALENDAR, FUNCTION_WORDS
from midthought.memory.rule_questions.speech import SpokenTurn, plain_words

MIN_NAME_SHARE = 0.9
"""A word is a name if it has a capital letter at least this often within sentences."""
_CONTRACTION = re.compile(r"[a-z]['’](?:re|ve|m|d|ll|t)$")
_DERIVED = re.compile(r"-(?:ed|ing|enabled|based|like|driven|related|style|specific|only|free|wide)$|/")
"""Endings of verbs and adjectives that are made from a name."""
_EDGES = re.compile(r"^\W+|[^\w+#]+$")


class Vocabulary:
    """Statistics of the words of all turns."""

    def __init__(self, turns: Sequence[SpokenTurn]) -> None:
        self._num_sentences = 0
        self._frequency: Counter[str] = Counter()
        self._capital: Counter[str] = Counter()
        self._within: Counter[str] = Counter()
        for turn in turns:
            for sentence in turn.sentences:
                self._num_sentences += 1
                self._frequency.update(set(plain_words(sentence.text)))
                for token in sentence.text.split()[1:]:
                    bare = bare_token(token)
                    if bare:
                        self._within[bare.lower()] += 1
                        self._capital[bare.lower()] += bare[0].isupper()

    def idf(self, word: str) -> float:
        """Inverse document frequency over sentences: ln(N / n)."""
        return math.log(max(1, self._num_sentences) / max(1, self._frequency[word]))

    def content_words(self, text: str) -> list[str]:
        """Returns the words of three letters or more that are no function words, without possessive endings, in order."""
        words = (word.removesuffix("'s") for word in plain_words(text))
        return [word for word in words if word not in FUNCTION_WORDS and len(word) > 2]

    def information(self, text: str) -> float:
        """Sum of the three largest inverse document frequencies of the content words."""
        return sum(sorted((self.idf(word) for word in set(self.content_words(text))), reverse=True)[:3])

    def is_name(self, token: str) -> bool:
        """Whether a token within a sentence is (part of) a proper name."""
        bare = bare_token(token)
        if not bare or not bare[0].isupper() or bare.lower() in FUNCTION_WORDS or _CONTRACTION.search(bare):
            return False
        word = bare.lower()
        if word.removesuffix("'s") in ABBREVIATIONS or _DERIVED.search(word):
            return False
        return self._within[word] > 0 and self._capital[word] / self._within[word] >= MIN_NAME_SHARE

    def has_name(self, text: str) -> bool:
        """Whether one of the words is (part of) a proper name, and no day or month."""
        return any(self.is_name(token) and bare_token(token).lower() not in CALENDAR for token in text.split())

    def starts_lower(self, token: str) -> bool:
        """Whether the first word of a sentence is written small within one."""
        bare = bare_token(token)
        if bare.lower() in FUNCTION_WORDS:
            return bare not in ("I", "I'm", "I've", "I'd", "I'll")
        if not bare[1:].islower() and len(bare) > 1:
            return False
        word = bare.lower()
        return self._within[word] > 0 and self._capital[word] / self._within[word] < 1 - MIN_NAME_SHARE


@lru_cache(2**16)
def bare_token(token: str) -> str:
    """Returns the token without the signs around it."""
    return _EDGES.sub("", token)
