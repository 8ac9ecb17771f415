"""What the kinds of question read: turns, statements, gaps, and what else the memory says. English."""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from midthought.memory.rule_questions import wordings
from midthought.memory.rule_questions.english import FUNCTION_WORDS
from midthought.memory.rule_questions.gaps import Gap, blank_of, gaps_of
from midthought.memory.rule_questions.numbers import number_places, number_value
from midthought.memory.rule_questions.speech import Sentence, SpokenTurn, plain_words
from midthought.memory.rule_questions.statements import (
    Statement,
    clauses_of,
    english_stems,
    fine_clauses_of,
    is_named,
    statements_of,
)
from midthought.memory.rule_questions.vocabulary import Vocabulary, bare_token

Option = TypeVar("Option")
MIN_INFORMATION_SHARE = 0.6
"""A statement has at least this share of the information of three words that occur once."""
MIN_CONTENT_WORDS = 4
_MIN_CONTENT = {"name": MIN_CONTENT_WORDS, "number": MIN_CONTENT_WORDS - 1}
"""Of a sentence with one word left out. A number has a noun beside it."""
MAX_SHARED_INFORMATION = 0.6


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before it is chosen."""

    kind: str
    form: str
    question: str
    answer: str
    aliases: tuple[str, ...]
    chunk_ids: tuple[str, ...]
    stem: str
    subject: str
    """What it is about; a statement is used once per kind."""
    information: float = 0.0
    named: str = ""
    """The speaker or the episode that the question names; of an unanswerable one the wrong one."""
    labels: dict[str, str] = field(default_factory=dict)
    is_specific: bool = True
    """Of a question about a statement: `Statement.is_specific`."""


class Listener:
    """What the forms read: turns, statements, and what else the memory says."""

    def __init__(
        self,
        turns: Sequence[SpokenTurn],
        memory: Sequence[SpokenTurn],
        seed: str,
        *,
        has_premises: bool = False,
    ) -> None:
        """`turns` are asked about; answers are unique in `memory`, which contains them. `seed` decides what is picked.
        `has_premises`: questions about a statement name its speaker or its episode, which are wrong in an unanswerable one."""
        self.turns, self._seed, self.has_premises = turns, seed, has_premises
        self.vocabulary = Vocabulary(memory)
        self.index = StatementIndex(memory, self.vocabulary)
        self.memory = memory
        self.english = english_stems(turns)
        least = MIN_INFORMATION_SHARE * 3 * self.vocabulary.idf("")
        self.statements = [
            each
            for each in statements_of(turns, self.vocabulary)
            if each.information >= least and self._has_content(each.text) and _is_open(each)
        ]
        self.gaps = [
            gap
            for statement in statements_of(turns, self.vocabulary, whole=False)
            for gap in gaps_of(statement, self.vocabulary)
            if self.has_one_answer(gap) and not _abbreviates(gap.answer, gap.clause)
        ]
        self.blanks = [
            gap
            for kind, clauses in (("name", clauses_of), ("number", fine_clauses_of))
            for statement in statements_of(turns, self.vocabulary, clauses=clauses)
            for gap in blank_of(statement, self.vocabulary)
            if gap.kind == kind and self._has_content(gap.clause, _MIN_CONTENT[kind])
            if self.has_one_answer(gap) and not reveals(gap.clause, gap.answer) and _is_open(gap.statement)
            if not _abbreviates(gap.answer, gap.clause)
        ]
        self.speakers: dict[str, list[str]] = defaultdict(list)
        for turn in memory:
            if is_named(turn.speaker) and turn.speaker not in self.speakers[turn.stem]:
                self.speakers[turn.stem].append(turn.speaker)

    def _has_content(self, text: str, least: int = MIN_CONTENT_WORDS) -> bool:
        return len(set(self.vocabulary.content_words(text))) >= least

    def has_one_answer(self, gap: Gap) -> bool:
        """Whether nothing else that the speaker says may answer it."""
        places = self.index.similar(f"{gap.wh} {gap.clause}", gap.statement.sentence)
        return all(place.speaker != gap.statement.speaker or not _may_answer(gap, place.sentence) for place in places)

    def drawn(self, *about: str) -> float:
        """Returns a number in (0, 1) that depends on the seed and on these texts only: a question stays the same when others come
        or go."""
        digest = hashlib.blake2b("\n".join((self._seed, *about)).encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") + 0.5) / 2**64

    def pick(self, options: Sequence[Option], *about: str) -> Option:
        """Returns one of the options; it stays the same when others come or go (rendezvous hashing)."""
        return min(options, key=lambda option: self.drawn(*about, str(option)))

    def choose(self, frames: Sequence[str], **values: str) -> str:
        """Returns one of the wordings, filled, with a capital letter."""
        text = self.pick(frames, *values.values()).format(**values)
        return text[0].upper() + text[1:]


def _is_open(statement: Statement) -> bool:
    """Whether the statement does not name its speaker."""
    names = {word for word in bare_words(statement.speaker) if len(word) > 2}
    return not names & bare_words(statement.text)


def bare_words(text: str) -> set[str]:
    """Returns the plain words of a text that may name somebody: "Björn's" is "bjorn"."""
    letters = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return {word.removesuffix("'s") for word in plain_words(letters)}


def _abbreviates(answer: str, clause: str) -> bool:
    """Whether an acronym has the first letters of words of the question."""
    letters = "".join(letter for letter in answer if letter.isalpha())
    initials = "".join(word[0] for word in plain_words(clause))
    return len(letters) > 1 and letters.isupper() and letters.lower() in initials


def _may_answer(gap: Gap, sentence: Sentence) -> bool:
    """Whether a similar sentence may hold another answer: to a question for a number or year, only one with other numbers."""
    if gap.kind == "name":
        return True
    tokens = sentence.text.split()
    words = [bare_token(token).lower() for token in tokens]
    numbers = {number_value(words[start:end]) for start, end in number_places(tokens, words)}
    return bool(numbers) and number_value(plain_words(gap.answer)) not in numbers


def reveals(question: str, answer: str) -> bool:
    """Whether the question has a content word of the answer."""
    words = {word for word in plain_words(answer) if word not in FUNCTION_WORDS}
    return bool(words & set(plain_words(question)))


def draft_of_gap(asked: Listener, gap: Gap) -> Draft:
    question = gap.question(gap.statement.speaker, asked.pick(wordings.FRAMES, gap.clause))
    return draft_of(gap.kind, "gap", question, gap.answer, gap.aliases, gap.statement)


def draft_of(kind: str, form: str, question: str, answer: str, aliases: tuple[str, ...], each: Statement) -> Draft:
    return Draft(
        kind, form, question, answer, aliases, each.sentence.chunk_ids, each.stem, each.text, each.information,
        each.speaker, is_specific=each.is_specific,
    )  # fmt: skip


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
        self._stems: dict[str, set[str]] = defaultdict(set)
        self._phrase = cache(_phrase)  # of a sentence that several questions are compared with
        for turn in turns:
            for sentence in turn.sentences:
                for word in vocabulary.content_words(sentence.text):
                    self._holders[word].add(len(self._places))
                    self._stems[word].add(turn.stem)
                self._places.append(Place(turn.stem, turn.speaker, sentence))
        self._words = sorted(self._stems)

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

    def shared(self, text: str) -> Mapping[str, float]:
        """Returns by episode how much of the text's information its words have, wherever they occur in it."""
        found: dict[str, float] = defaultdict(float)
        for word in dict.fromkeys(self._vocabulary.content_words(text)):  # sums do not depend on hashes
            for stem in self._stems.get(word, ()):
                found[stem] += self._vocabulary.idf(word)
        return found

    def has_derived(self, name: str, stem: str) -> bool:
        """Whether the episode has a word that is made from the name: "YouTuber", "Covid-19"."""
        word = plain_words(name)[-1] if plain_words(name) else name.lower()
        same = {word, f"{word}s", f"{word}'s", f"{word}s'"}
        first = bisect_left(self._words, word)
        made = itertools.takewhile(lambda other: other.startswith(word), itertools.islice(self._words, first, None))
        return any(stem in self._stems[other] for other in made if other not in same)

    def mentions(self, name: str) -> list[Place]:
        """Returns the sentences with these words next to each other, in order, whatever their case, in singular or plural."""
        singular = name[:-1] if name[-1:] == "s" and name[-2:-1].isupper() else name  # "LLMs"
        found: set[int] = set()
        for form in (singular, f"{singular}s"):
            sets = [self._holders.get(word, set()) for word in self._vocabulary.content_words(form)]
            numbers = set.intersection(*sets) if sets else range(len(self._places))
            phrase = _phrase(form)
            found.update(number for number in numbers if phrase in self._phrase(self._places[number].sentence.text))
        return [self._places[number] for number in sorted(found)]


def _phrase(text: str) -> str:
    """Words between signs do not touch: "Emacs, Vim" are two names."""
    parts = (" ".join(word.removesuffix("'s") for word in plain_words(part)) for part in _BETWEEN.split(text))
    return f" {' , '.join(parts)} "


_BETWEEN = re.compile(r"[,;:!?()\"“”…–—]")
