"""What a problem says itself, so that a critic may say it, too: its numbers and words, each beside its neighbours.

Knows no answer.
"""

from __future__ import annotations

import re
from fractions import Fraction

from midthought.feedback.masking_context import company
from midthought.feedback.masking_expression import word_keys
from midthought.feedback.masking_numbers import literals
from midthought.feedback.masking_tokens import Levelled, tokens_of

NUM_QUOTED = 14
"""So many characters on either side are those of the problem where it is quoted."""


class Problem:
    """What the problem itself says, so that a text may say it, too."""

    def __init__(self, text: str) -> None:
        levelled = self._text = Levelled(text).text
        self._tokens = tokens_of(levelled)
        self.asks_for_percent = bool(re.search(r"percent|per cent|%", levelled, re.IGNORECASE))
        self.values: set[Fraction] = set()
        self._companies: set[tuple[Fraction | str, int, str]] = set()
        self._keys = word_keys(self._tokens)
        self._num_places: dict[str, int] = {}
        self.words = frozenset(self._keys.keys)
        for literal in literals(self._tokens):
            beside = company(self._tokens, literal.first, literal.last)
            for value in literal.values:
                self.values.add(value)
                self._companies |= {(value, place, word) for place, word in enumerate(beside) if word}

    def is_quoted(self, text: str, start: int, end: int) -> bool:
        """Whether the stretch stands in the problem with the same letters on either side."""
        before, after = text[max(0, start - NUM_QUOTED) : start], text[end : end + NUM_QUOTED]
        is_long = len(before.strip()) + len(after.strip()) >= NUM_QUOTED
        return is_long and before + text[start:end] + after in self._text

    def has(self, words: str) -> bool:
        """Whether these words stand side by side in it."""
        return bool(self._places(words))

    def knows(self, what: Fraction | str, before: str, after: str, *, told: bool) -> bool:
        """Whether the problem says this beside the same word; where it is told as a result, beside the same word before."""
        if isinstance(what, str):
            self._places(what)
        if before and (what, 0, before) in self._companies:
            return True
        return not told and bool(after) and (what, 1, after) in self._companies

    def _places(self, words: str) -> int:
        """How often these words stand in it; what they stand beside is noted when it is first asked."""
        if words not in self._num_places:
            places = list(self._keys.places(words.split()))
            self._num_places[words] = len(places)
            for first, last in places:
                beside = company(self._tokens, first, last)
                self._companies |= {(words, place, word) for place, word in enumerate(beside) if word}
        return self._num_places[words]
