"""Measures of two configurations and their paired tests: by seed if both have two seeds in common, else by question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from midthought.evaluation.comparison.compared_run import Answer, ComparedRun, Configuration, Question
from midthought.evaluation.paired_tests import PairedTest, mcnemar, paired_bootstrap, paired_t

LAST_SHARE = 0.1
"""The reward at the end of training is the mean of this share of the iterations that all runs have done."""

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
    """A key of `OF_ANSWERS`, or `training_reward`."""
    baseline: float
    other: float
    test: PairedTest | None
    """None if there is too little to test."""


def answer_measures(
    baseline: Configuration, other: Configuration, arm: str, step: int, questions: Sequence[Question]
) -> list[MeasureResult]:
    """Returns every measure of `OF_ANSWERS` that both have, over the questions that all runs answered."""
    found = []
    for name, of in OF_ANSWERS.items():
        scores = [_scores(one.runs, arm, step, questions, of) for one in (baseline, other)]
        shared = [question for question in questions if question in scores[0] and question in scores[1]]
        if not shared:
            continue
        first, second = ([score[question] for question in shared] for score in scores)
        seeds = shared_seeds(baseline, other)
        test: PairedTest | None
        if len(seeds) >= 2:
            values = [
                [_of_run(c.by_seed[seed], arm, step, shared, name, of) for seed in seeds] for c in (baseline, other)
            ]
            first, second = values
            test = paired_t([b - a for a, b in zip(first, second, strict=True)])
        elif name == "exact_match" and {*first, *second} <= {0.0, 1.0}:
            test = mcnemar([value == 1 for value in first], [value == 1 for value in second])
        else:
            test = paired_bootstrap([b - a for a, b in zip(first, second, strict=True)]) if len(shared) > 1 else None
        found.append(MeasureResult(measure=name, baseline=fmean(first), other=fmean(second), test=test))
    return found


def _scores(
    runs: Sequence[ComparedRun], arm: str, step: int, questions: Iterable[Question], of: Of
) -> dict[Question, float]:
    """Returns the mean of a measure over runs and repetitions, by question; without questions that have no value in some run."""
    found = {}
    for question in questions:
        values = [[v for answer in run.answers[arm][step][question] if (v := of(answer)) is not None] for run in runs]
        if all(values):
            found[question] = fmean(fmean(of_run) for of_run in values)
    return found


def _of_run(run: ComparedRun, arm: str, step: int, questions: Iterable[Question], name: str, of: Of) -> float:
    """Returns a measure of one run: exact match over all of its questions, if it is logged, else over the shared ones."""
    if name == "exact_match" and (logged := run.exact_match(arm, step)) is not None:
        return logged
    return fmean(_scores([run], arm, step, questions, of).values())


def training_reward(baseline: Configuration, other: Configuration) -> list[MeasureResult]:
    """Returns the reward at the end of training, tested by seed; without shared seeds it is not tested."""
    curves = {id(run): run.learning_curve() for run in (*baseline.runs, *other.runs)}
    shared = sorted(set.intersection(*(set(curve) for curve in curves.values())))
    if not shared:
        return []
    last = shared[-max(round(len(shared) * LAST_SHARE), 1) :]
    means = {run: fmean(curve[step] for step in last) for run, curve in curves.items()}
    seeds = shared_seeds(baseline, other)
    pairs = [(baseline.by_seed[seed], other.by_seed[seed]) for seed in seeds]
    test = paired_t([means[id(b)] - means[id(a)] for a, b in pairs])
    first, second = (fmean(means[id(run)] for run in one.runs) for one in (baseline, other))
    return [MeasureResult(measure="training_reward", baseline=first, other=second, test=test)]


def shared_seeds(baseline: Configuration, other: Configuration) -> list[Any]:
    """Returns the seeds that both have, in the order of the baseline."""
    return [seed for seed in baseline.by_seed if seed is not None and seed in other.by_seed]
