"""Compares configurations: differing settings, held-out answers, paired tests, and a verdict that names its test.

Every configuration is compared with the first one. Does not depend on how the result is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from midthought.errors import SettingsError, near_names
from midthought.evaluation.comparison.compared_run import (
    SEED,
    ComparedRun,
    Configuration,
    Question,
    configurations,
    differs,
    read_compared_run,
)
from midthought.evaluation.comparison.measures import MeasureResult, Pairing, answer_measures, training_reward
from midthought.evaluation.comparison.verdict import Verdict, judge
from midthought.evaluation.paired_tests import holm

PREFERRED_ARMS = ("after.sampled", "after", "validation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A question that one of two runs answered correctly."""

    question: Question
    expected: str
    baseline: str
    other: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerChanges:
    """Answers to the same questions, counted over the pairs of runs (of the same seed, if there is one)."""

    both_right: int
    both_wrong: int
    gained: tuple[Example, ...]
    """Wrong in the baseline, right in the other."""
    lost: tuple[Example, ...]
    """Right in the baseline, wrong in the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairComparison:
    """One configuration compared with the baseline."""

    baseline: Configuration
    other: Configuration
    arm: str | None
    """None if there is no arm in which both answered the same questions."""
    step: int
    num_questions: int
    """Questions that both answered, as far as they are recorded, summed over the pairs of seeds."""
    measures: tuple[MeasureResult, ...]
    changes: AnswerChanges | None
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The whole comparison; its first configuration is the baseline."""

    configurations: tuple[Configuration, ...]
    settings: dict[str, list[Any]]
    """Settings that differ, of the sections that all have: one value per configuration, None if it has no such setting."""
    pairs: tuple[PairComparison, ...]
    notes: tuple[str, ...] = field(default=())


def compare(paths: Sequence[str | os.PathLike[str]], *, arm: str | None = None) -> Comparison:
    """Compares the runs at `paths`; the first one's configuration is the baseline.

    `arm`: whose answers are compared (`after`, `after.sampled`, `validation`, …); None: the first of `PREFERRED_ARMS` that both
    have.
    Raises `SettingsError` for fewer than two runs or an unknown arm, and as `read_compared_run`.
    """
    runs = [read_compared_run(path) for path in paths]
    repeated = [str(run.path) for number, run in enumerate(runs) if run.path.resolve() in _places(runs[:number])]
    if repeated:
        raise SettingsError(f"{repeated[0]} is given twice; give two different runs")
    if len(runs) < 2:
        raise SettingsError(f"{len(runs)} run given; give two or more, the first one is the baseline")
    arms = {name for run in runs for name in run.answers}
    if arm is not None and arm not in arms:
        raise SettingsError(f"no run has answers of the arm {arm!r}. {near_names(arm, arms)}")
    found = configurations(runs)
    pairs = _adjusted([_compare_two(found[0], other, arm) for other in found[1:]])
    return Comparison(
        configurations=tuple(found), settings=_differing(found), pairs=pairs, notes=tuple(_notes(runs, found))
    )


def _places(runs: Iterable[ComparedRun]) -> set[Any]:
    return {run.path.resolve() for run in runs}


def _compare_two(baseline: Configuration, other: Configuration, wanted: str | None) -> PairComparison:
    pairing = Pairing.of(baseline, other)
    arm, step, questions = _shared_questions(pairing, wanted)
    measures = [] if arm is None else answer_measures(pairing, arm, step, questions)
    measures += training_reward(pairing)
    changes = None if arm is None else _changes(pairing, arm, step, questions)
    return PairComparison(
        baseline=baseline,
        other=other,
        arm=arm,
        step=step,
        num_questions=sum(map(len, questions)),
        measures=tuple(measures),
        changes=changes,
        verdict=judge(measures, arm, step, baseline, other),
    )


def _shared_questions(pairing: Pairing, wanted: str | None) -> tuple[str | None, int, list[list[Question]]]:
    """Returns the arm, its last step that all runs have, and the questions of each pair that all of its runs answered there."""
    runs = pairing.runs
    arms = [arm for arm in runs[0].answers if all(arm in run.answers for run in runs)]
    order = [arm for arm in PREFERRED_ARMS if arm in arms] + [arm for arm in arms if arm not in PREFERRED_ARMS]
    for arm in order if wanted is None else [arm for arm in order if arm == wanted]:
        steps = set.intersection(*(set(run.answers[arm]) for run in runs))
        for step in sorted(steps, reverse=True):
            if all(questions := pairing.questions(arm, step)):
                return arm, step, questions
    return None, 0, []


def _changes(pairing: Pairing, arm: str, step: int, questions: Sequence[Sequence[Question]]) -> AnswerChanges | None:
    pairs = [
        (question, first, second)
        for (ones, others), shared in zip(pairing.pairs, questions, strict=True)
        for question in shared
        for first, second in zip(
            ones[0].answers[arm][step][question], others[0].answers[arm][step][question], strict=False
        )
        if first.right is not None and second.right is not None
    ]
    if not pairs:
        return None
    examples: dict[bool, list[Example]] = {True: [], False: []}
    for question, first, second in pairs:
        if first.right != second.right:
            examples[bool(second.right)].append(
                Example(question=question, expected=first.expected, baseline=first.text, other=second.text)
            )
    return AnswerChanges(
        both_right=sum(bool(first.right and second.right) for _, first, second in pairs),
        both_wrong=sum(not (first.right or second.right) for _, first, second in pairs),
        gained=tuple(examples[True]),
        lost=tuple(examples[False]),
    )


def _adjusted(pairs: Sequence[PairComparison]) -> tuple[PairComparison, ...]:
    """With several comparisons, adjusts the p-values of the verdicts by Holm's method."""
    tested = [pair for pair in pairs if pair.verdict.p_value is not None]
    if len(tested) < 2:
        return tuple(pairs)
    adjusted = holm([pair.verdict.p_value for pair in tested if pair.verdict.p_value is not None])
    by_pair = dict(zip(map(id, tested), adjusted, strict=True))
    return tuple(
        replace(pair, verdict=pair.verdict.adjusted(by_pair[id(pair)], len(tested))) if id(pair) in by_pair else pair
        for pair in pairs
    )


# -- settings and notes --------------------------------------------------------------------------------------------


def _differing(found: Sequence[Configuration]) -> dict[str, list[Any]]:
    settings = [one.runs[0].settings for one in found]
    sections = set.intersection(*(one.runs[0].sections for one in found))
    names = dict.fromkeys(name for values in settings for name in values if name.partition(".")[0] in sections)
    alone = all(len(one.runs) == 1 for one in found)
    rows = {name: [values.get(name) for values in settings] for name in names if alone or name != SEED}
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row[1:])}


def _notes(runs: Sequence[ComparedRun], found: Sequence[Configuration]) -> Iterable[str]:
    for run in runs:
        if run.state != "finished":
            ends = max((steps[-1][0] for steps in run.record.metrics.get("ppo", {}).values()), default=0)
            yield f"{run.path} is {run.state} (iteration {ends}): only what has been written so far is compared."
        if not run.settings:
            yield f"{run.path} has no config.yaml: its settings are not compared."
    if not any(differs(found[0].runs[0], one.runs[0]) for one in found[1:]):
        yield "The runs have the same settings (apart from the seed): differences are chance, data or code."
    for first, second in combinations(found, 2):
        if first is found[0] and (only := first.runs[0].sections ^ second.runs[0].sections):
            yield (
                f"{first.name} and {second.name} have different sections of settings ({', '.join(sorted(only))}): they are "
                "runs of different recipes. Only what both have is compared."
            )
    for one in found[1:]:
        used = Pairing.of(found[0], one).runs
        if left_out := [run.name for run in (*found[0].runs, *one.runs) if run not in used]:
            yield f"{one.name} against {found[0].name}: only seeds that both have are compared, without {', '.join(left_out)}."
    recorded = {arm: max(map(len, steps.values())) for run in runs for arm, steps in run.answers.items()}
    of_summary = [int(run.record.summary.get("num_questions") or 0) for run in runs]
    shown = max((recorded[arm] for arm in PREFERRED_ARMS if arm in recorded), default=0)
    if shown and shown < max(of_summary):
        yield (
            f"{shown} of {max(of_summary)} questions are recorded; tests by question use these. Record all of them with "
            f"evaluation.num_shown={max(of_summary)} or checkpoint.record_episodes={max(of_summary)}."
        )
