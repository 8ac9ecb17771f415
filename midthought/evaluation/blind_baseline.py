"""How often questions are answered right without the memory: by constants, by the form of the question, and from other questions.

Every guesser sees the questions and answers of other episodes only, as a model that was trained on them does.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from midthought.data.abstention import UNANSWERABLE
from midthought.env.answers import task_is_right
from midthought.evaluation.metrics import balanced_accuracy
from midthought.types import Task

NUM_FOLDS = 5
MAX_ADVANTAGE = 0.05
"""A kind is suspicious if a guesser is right this much more often than the best constant."""
_OPTIONS = re.compile(r"[,:] ([^,:]+?) or ([^,?]+)\?|Both (.+?) and (.+?) speak")

Guesser = Callable[[Task], str]


@dataclass(frozen=True, slots=True)
class BlindScore:
    """Share of right answers of one kind, without the memory."""

    kind: str
    num_questions: int
    constant: float
    """Of the best constant answer, known from all questions, or of always the first (second) option."""
    best: float
    """Of the best other guesser."""
    guesser: str
    """Its name."""

    @property
    def advantage(self) -> float:
        """How much more often the guesser is right."""
        return self.best - self.constant


def blind_scores(tasks: Sequence[Task]) -> list[BlindScore]:
    """Returns the scores by kind (label `kind`). For questions without an answer, together with all others: the balanced
    accuracy of deciding whether there is an answer, of which a constant has 0.5."""
    by_kind: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        by_kind[str(task.labels.get("kind", ""))].append(task)
    scores = [_score(kind, own) for kind, own in sorted(by_kind.items()) if kind != UNANSWERABLE]
    if UNANSWERABLE in by_kind and len(by_kind) > 1:
        balanced = _answerability(tasks)
        scores.append(BlindScore(UNANSWERABLE, len(by_kind[UNANSWERABLE]), 0.5, balanced, "words"))
    return scores


def _score(kind: str, tasks: list[Task]) -> BlindScore:
    common = [answer for answer, _ in Counter(task.answer for task in tasks).most_common(3)]
    constants: dict[str, Guesser] = {repr(answer): lambda _, answer=answer: answer for answer in common}  # type: ignore[misc]
    constants |= {"first option": lambda task: options(task)[0], "second option": lambda task: options(task)[1]}
    guessers: dict[str, Guesser] = {
        "last name in the question": lambda task: _names(task)[-1],
        "first name in the question": lambda task: _names(task)[0],
        "number in the question": lambda task: next(iter(re.findall(r"\d+", task.prompt)), ""),
    }
    shares = {name: _share(tasks, [guess(task) for task in tasks]) for name, guess in guessers.items()}
    shares["words"] = _share(tasks, _from_others(tasks, lambda task: task.answer))
    shares["options by words"] = _share(tasks, _option_from_others(tasks))
    name = max(shares, key=lambda name: shares[name])
    constant = max(_share(tasks, [guess(task) for task in tasks]) for guess in constants.values())
    return BlindScore(kind, len(tasks), constant, shares[name], name)


def _share(tasks: Sequence[Task], guesses: Sequence[str]) -> float:
    return sum(task_is_right(task, guess) for task, guess in zip(tasks, guesses, strict=True)) / len(tasks)


def options(task: Task) -> tuple[str, str]:
    """Returns the two names that a question of a comparison offers; empty if it offers none."""
    found = _OPTIONS.search(task.prompt)
    names = [name for name in found.groups() if name] if found else []
    return (names[0].strip(), names[1].strip()) if len(names) == 2 else ("", "")


def _names(task: Task) -> list[str]:
    return re.findall(r"(?<=\w )[A-Z]\w+(?: [A-Z]\w+)*", task.prompt) or [""]


def _option_from_others(tasks: Sequence[Task]) -> list[str]:
    """Guesses the first or the second option by the words of the question."""
    sides = _from_others(tasks, lambda task: "1" if task.answer == options(task)[0] else "2")
    return [options(task)[0 if side == "1" else 1] for task, side in zip(tasks, sides, strict=True)]


def _answerability(tasks: Sequence[Task]) -> float:
    truth = [task.labels.get("kind") != UNANSWERABLE for task in tasks]
    guesses = _from_others(tasks, lambda task: str(task.labels.get("kind") != UNANSWERABLE), is_balanced=True)
    return balanced_accuracy([guess == str(each) for guess, each in zip(guesses, truth, strict=True)], truth)


def _from_others(tasks: Sequence[Task], answer_of: Callable[[Task], str], *, is_balanced: bool = False) -> list[str]:
    """Guesses by naive Bayes over the words of the questions, in folds that share no episode."""
    stems = sorted({str(task.labels.get("episode", task.task_id)) for task in tasks})
    fold_of = {stem: place % NUM_FOLDS for place, stem in enumerate(stems)}
    folds = [fold_of[str(task.labels.get("episode", task.task_id))] for task in tasks]
    guesses = []
    models = {
        fold: NaiveBayes(
            [(_words(task.prompt), answer_of(task)) for task, own in zip(tasks, folds, strict=True) if own != fold],
            is_balanced=is_balanced,
        )
        for fold in set(folds)
    }
    for task, fold in zip(tasks, folds, strict=True):
        guesses.append(models[fold].guess(_words(task.prompt)))
    return guesses


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


class NaiveBayes:
    """Multinomial naive Bayes over words, with add-one smoothing. Without examples it guesses an empty text."""

    def __init__(self, examples: Sequence[tuple[Sequence[str], str]], *, is_balanced: bool) -> None:
        """`is_balanced`: all classes are equally probable before the question is read."""
        self._counts: Mapping[str, Counter[str]] = defaultdict(Counter)
        self._prior: Counter[str] = Counter()
        for words, label in examples:
            self._counts[label].update(words)
            self._prior[label] += 1
        self._totals = {label: counts.total() for label, counts in self._counts.items()}
        self._num_words = len({word for counts in self._counts.values() for word in counts}) + 1
        self._is_balanced = is_balanced

    def guess(self, words: Sequence[str]) -> str:
        """Returns the most probable class."""

        def log_probability(label: str) -> float:
            counts, total = self._counts[label], self._totals[label] + self._num_words
            prior = 0.0 if self._is_balanced else math.log(self._prior[label])
            return prior + sum(math.log((counts[word] + 1) / total) for word in words)

        return max(self._prior, key=log_probability, default="")
