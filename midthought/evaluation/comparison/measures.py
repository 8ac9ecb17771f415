"""Measures of two configurations and their paired tests: by seed if both have two seeds in common, else by question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from midthought.evaluation.comparison.compared_run import Answer, ComparedRun, Configuration, Question
from midthought.evaluation.paired_tests import PairedTest, mcnemar, paired_bootstrap, paired_t

LAST_SHARE = 0.1
"""The reward at the end of training is the mean of this share of the iterations that all runs have done."""

Runs = tuple[ComparedRun, ...]
Scores = dict[Question, float]
Of = Callable[[Answer], float | None]
OF_ANSWERS: dict[str, Of] = {
    "exact_match": lambda answer: None if answer.right is None else float(answer.right),
    "reward": lambda answer: answer.reward,
    "calls": lambda answer: answer.num_calls,
    "policy_tokens": lambda answer: answer.num_policy_tokens,
}
"""Measures of a held-out answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureResult:
    """One measure of two configurations."""

    measure: str
    """A key of `OF_ANSWERS`, `logged_exact_match` (over all questions of the arm) or `training_reward`."""
    baseline: float
    other: float
    test: PairedTest | None
    """None if there is too little to test."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Runs that are compared with each other: one pair per shared seed, or all runs of both as one pair without shared seeds."""

    pairs: tuple[tuple[Runs, Runs], ...]

    @classmethod
    def of(cls, baseline: Configuration, other: Configuration) -> Pairing:
        seeds = [seed for seed in baseline.by_seed if seed is not None and seed in other.by_seed]
        pairs = tuple(((baseline.by_seed[seed],), (other.by_seed[seed],)) for seed in seeds)
        return cls(pairs or ((baseline.runs, other.runs),))

    @property
    def is_by_seed(self) -> bool:
        """Whether a test has seeds as its pairs; else it has questions."""
        return len(self.pairs) > 1

    @property
    def runs(self) -> list[ComparedRun]:
        return [run for pair in self.pairs for side in pair for run in side]

    def questions(self, arm: str, step: int) -> list[list[Question]]:
        """Returns the questions of each pair that all of its runs answered. Recipes choose them by the seed, so pairs may have
        different ones."""
        found = []
        for first_runs, second_runs in self.pairs:
            first, *rest = (run.answers[arm][step] for run in (*first_runs, *second_runs))
            found.append([question for question in first if all(question in answers for answers in rest)])
        return found


def answer_measures(
    pairing: Pairing, arm: str, step: int, questions: Sequence[Sequence[Question]]
) -> list[MeasureResult]:
    """Returns every measure of `OF_ANSWERS` that both sides have, over the questions of each pair."""
    found = []
    for name, of in OF_ANSWERS.items():
        scores = [
            [_scores(runs, arm, step, own, of) for runs in pair]
            for pair, own in zip(pairing.pairs, questions, strict=True)
        ]
        if all(first.keys() & second.keys() for first, second in scores):
            found.append(
                _tested_by_seed(pairing, name, scores, arm, step) if pairing.is_by_seed else _tested(name, *scores[0])
            )
    return [*found, *_logged_exact_match(pairing, arm, step)]


def _logged_exact_match(pairing: Pairing, arm: str, step: int) -> list[MeasureResult]:
    """Returns the exact match over all questions, which is not tested because not every answer is recorded; by seed, it is in the
    test."""
    ((baseline, other), *more) = pairing.pairs
    logged = [[run.exact_match(arm, step) for run in runs] for runs in (baseline, other)]
    if more or any(None in values for values in logged):
        return []
    first, second = (fmean(value for value in values if value is not None) for values in logged)
    return [MeasureResult(measure="logged_exact_match", baseline=first, other=second, test=None)]


def _tested(name: str, baseline: Scores, other: Scores) -> MeasureResult:
    """Tests by question."""
    first, second = zip(
        *((baseline[question], other[question]) for question in baseline if question in other), strict=True
    )
    test: PairedTest | None
    if name == "exact_match" and {*first, *second} <= {0.0, 1.0}:
        test = mcnemar([value == 1 for value in first], [value == 1 for value in second])
    else:
        test = paired_bootstrap([b - a for a, b in zip(first, second, strict=True)]) if len(first) > 1 else None
    return MeasureResult(measure=name, baseline=fmean(first), other=fmean(second), test=test)


def _tested_by_seed(
    pairing: Pairing, name: str, scores: Sequence[Sequence[Scores]], arm: str, step: int
) -> MeasureResult:
    """Tests by seed: a run's value is its logged exact match (over all of its questions), else its mean over shared questions."""
    values = []
    for pair, (baseline, other) in zip(pairing.pairs, scores, strict=True):
        shared = baseline.keys() & other.keys()
        means = [fmean(side[question] for question in shared) for side in (baseline, other)]
        logged = [run.exact_match(arm, step) for (run,) in pair] if name == "exact_match" else [None]
        values.append([value for value in logged if value is not None] if None not in logged else means)
    first, second = zip(*values, strict=True)
    return _by_seed(name, first, second)


def _by_seed(name: str, first: Sequence[float], second: Sequence[float]) -> MeasureResult:
    test = paired_t([b - a for a, b in zip(first, second, strict=True)])
    return MeasureResult(measure=name, baseline=fmean(first), other=fmean(second), test=test)


def _scores(runs: Runs, arm: str, step: int, questions: Iterable[Question], of: Of) -> Scores:
    """Returns the mean of a measure over runs and repetitions, by question; without questions that have no value in some run."""
    found = {}
    for question in questions:
        values = [[v for answer in run.answers[arm][step][question] if (v := of(answer)) is not None] for run in runs]
        if all(values):
            found[question] = fmean(fmean(of_run) for of_run in values)
    return found


def training_reward(pairing: Pairing) -> list[MeasureResult]:
    """Returns the reward at the end of training, tested by seed; without two shared seeds it is not tested."""
    curves = {id(run): run.learning_curve() for run in pairing.runs}
    shared = sorted(set.intersection(*(set(curve) for curve in curves.values())))
    if not shared:
        return []
    last = shared[-max(round(len(shared) * LAST_SHARE), 1) :]
    means = {run: fmean(curve[step] for step in last) for run, curve in curves.items()}
    values = [[fmean(means[id(run)] for run in runs) for runs in pair] for pair in pairing.pairs]
    first, second = zip(*values, strict=True)
    return [_by_seed("training_reward", first, second)]
