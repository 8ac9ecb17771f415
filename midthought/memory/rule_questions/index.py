"""Finds what else a memory says about the words of a statement, so that a question has one answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from midthought.memory.rule_questions.speech import Sentence, SpokenTurn, plain_words
from midthought.memory.rule_questions.vocabulary import Vocabulary

MAX_SHARED_INFORMATION = 0.6


@dataclass(frozen=True, slots=True)
class Place:
    """A sentence with its speaker and episode."""

    stem: str
    speaker: str
    sentence: Sentence


class StatementIndex:
    """The content words of every sentence of a memory."""

    def __init__(self, turns: Sequence[SpokenTurn], vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._places: list[Place] = []
        self._holders: dict[str, set[int]] = defaultdict(set)
        for turn in turns:
            for sentence in turn.sentences:
                for word in vocabulary.content_words(sentence.text):
                    self._holders[word].add(len(self._places))
                self._places.append(Place(turn.stem, turn.speaker, sentence))

    def similar(self, text: str, other_than: Sentence, share: float = MAX_SHARED_INFORMATION) -> Iterator[Place]:
        """Yields the other sentences that have at least this share of the text's information, each word weighted by its
        inverse document frequency."""
        weights = {word: self._vocabulary.idf(word) for word in self._vocabulary.content_words(text)}
        found: dict[int, float] = defaultdict(float)
        for word, weight in weights.items():
            for number in self._holders.get(word, ()):
                found[number] += weight
        least = share * sum(weights.values())
        for number, weight in found.items():
            if weight >= least and self._places[number].sentence != other_than:
                yield self._places[number]

    def mentions(self, name: str) -> list[Place]:
        """Returns the sentences with these words next to each other, in order, whatever their case."""
        sets = [self._holders.get(word, set()) for word in self._vocabulary.content_words(name)]
        numbers = sorted(set.intersection(*sets)) if sets else range(len(self._places))
        phrase = _phrase(name)
        return [self._places[number] for number in numbers if phrase in _phrase(self._places[number].sentence.text)]


def _phrase(text: str) -> str:
    words = " ".join(word.removesuffix("'s") for word in plain_words(text))
    return f" {words} "
