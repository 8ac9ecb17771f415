"""Hard paraphrases: questions that share neither a run of three words nor a rare word with their passage.

The rule is checked on the words of the episodes. Half of the questions, by the digest of their first wording, is for tuning;
README.md says what was tuned on which half.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from benchmarks.retrieval.asked import Asked, Episodes, words_of

RUN_WORDS = 3
WORDS_PER_RARE = 5_000
"""A word is rare if its stem is at most one in so many words of all episodes (42 times in the 30 episodes)."""
_ENDINGS = (
    "ingly", "edly", "ations", "ation", "ments", "ment", "ings", "ing", "ies", "ied", "ers", "ed", "er", "es", "ly", "s",
    "e", "y",
)  # fmt: skip


class Hardness:
    """Decides which questions are hard."""

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes
        self._stem_of = {word: stem_of(word) for words in episodes.words.values() for word in set(words)}
        self._counts = Counter(self._stem_of[word] for words in episodes.words.values() for word in words)
        self._num_words = sum(self._counts.values())

    def shared(self, question: Asked) -> list[str]:
        """Returns the runs of three words and the rare words that the question shares with its passage; empty: it is hard."""
        place = question.place
        asked, passage = words_of(question.text), self._episodes.words[place.stem][place.start : place.end]
        runs = _runs(asked) & _runs(passage)
        stems = {self._stem_of[word] for word in passage}
        return sorted([*map(" ".join, runs), *(w for w in set(asked) if stem_of(w) in stems and self._is_rare(w))])

    def _is_rare(self, word: str) -> bool:
        return self._counts[stem_of(word)] * WORDS_PER_RARE <= self._num_words


def stem_of(word: str) -> str:
    """The word without a usual English ending, so that `buys` and `buying` count as one word."""
    ending = next((each for each in _ENDINGS if word.endswith(each) and len(word) - len(each) >= 3), "")
    bare = word.removesuffix(ending)
    return bare[:-1] if len(bare) > 3 and bare[-1] == bare[-2] else bare


def is_for_tuning(question: Asked) -> bool:
    """True for half of the questions, by the digest of their first wording; results are reported for the others."""
    return hashlib.sha256((question.first_wording or question.text).encode()).digest()[0] % 2 == 0


def _runs(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + RUN_WORDS]) for start in range(len(words) - RUN_WORDS + 1)}
