"""Compares runs with the first one: the settings that differ, and one table of paired tests.

Runs that differ only in `training.seed` are the seeds of one configuration. With two or more seeds in common the pairs of a test
are seeds, else they are the held-out questions that both answered.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from midthought.config import read_yaml
from midthought.errors import CheckpointError, SettingsError, near_names
from midthought.report.console import Console
from midthought.report.json_lines import json_value
from midthought.report.page_episodes import PageEpisode, read_page_episodes
from midthought.report.paired_tests import PairedTest, mcnemar, paired_permutation, paired_t
from midthought.report.recording import TRAINING_ARM
from midthought.report.run_folder import RunFolder, flat_keys
from midthought.report.run_lock import RunLock
from midthought.report.run_record import RunRecord, read_run

SEED = "training.seed"
PREFERRED_ARMS = ("after.sampled", "after", "validation.sampled", "validation")
LAST_SHARE = 0.1
"""The training reward is the mean over this share of the iterations that all compared runs have done, the last ones."""
_LEFT_OUT = (SEED, "checkpoint.", "checks.")
"""Settings in which the seeds of one configuration may differ: what is stored and reported."""

MEASURES = ("exact_match", "reward", "calls", "policy_tokens")
Answers = dict[tuple[str, str], dict[str, float | None]]
"""By question: the mean of each measure over its episodes; None if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRun:
    """One run of a comparison."""

    path: Path
    state: str
    """`finished`, `running` (a process works in the folder), or `unfinished` (it was stopped before its last evaluation)."""
    settings: Mapping[str, Any]
    """Flat: `section.key`; empty without `config.yaml`."""
    record: RunRecord
    answers: Mapping[tuple[str, int], Answers]
    """By arm and step; without training episodes and without the arms before training."""

    @property
    def seed(self) -> Any:
        return self.settings.get(SEED)

    def score(self, measure: str, arm: str, step: int) -> float | None:
        """Returns the mean over the recorded questions; for exact match the one logged over all questions, if there is."""
        logged = None
        if measure == "exact_match" and arm.startswith("validation"):
            logged = dict(self.record.metrics.get(arm, {}).get("exact_match", ())).get(step)
        elif measure == "exact_match":
            logged = self.record.summary.get(f"{arm}.exact_match", self.record.summary.get(f"{arm}_exact_match"))
        return (
            _mean(values[measure] for values in self.answers[arm, step].values()) if logged is None else float(logged)
        )

    def learning_curve(self) -> dict[int, float]:
        """Returns the mean reward of the training episodes by iteration."""
        return dict(self.record.metrics.get("ppo", {}).get("reward/mean", ()))


Runs = list[ComparedRun]
Pair = tuple[ComparedRun, ComparedRun]
"""A run of the baseline, and one of another configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measure of a configuration and of the baseline."""

    run: str
    measure: str
    arm: str
    """Whose answers were measured; empty for the training reward."""
    baseline: float
    value: float
    test: PairedTest | None
    """None if there is too little to test."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The whole comparison; the first configuration is the baseline."""

    names: tuple[str, ...]
    settings: dict[str, list[Any]]
    """Settings that differ: one value per configuration, None if it has no such setting."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = json_value(asdict(self))
        return found


def compare(paths: Sequence[str | os.PathLike[str]], *, arm: str | None = None) -> Comparison:
    """Compares the runs at `paths`; the first one's configuration is the baseline.

    `arm`: whose answers are compared (`after`, `after.sampled`, `validation`, …); None: the first of `PREFERRED_ARMS` that both
    have. Raises `SettingsError` for fewer than two runs, settings that cannot be read or an unknown arm, `CheckpointError` if
    there is no run or a file of it cannot be read.
    """
    places = [Path(path).resolve() for path in paths]
    for number, path in enumerate(paths):
        if places[number] in places[:number]:
            raise SettingsError(f"{path} is given twice; give two different runs")
    if len(paths) < 2:
        raise SettingsError(f"{len(paths)} run given; give two or more, the first one is the baseline")
    runs = [_read(path) for path in paths]
    arms = {name for run in runs for name, _ in run.answers}
    if arm is not None and arm not in arms:
        raise SettingsError(f"no run has answers of the arm {arm!r}. {near_names(arm, arms)}")
    (baseline, base), *others = _configurations(runs).items()
    rows, notes = [], list(_notes(runs))
    for name, other in others:
        pairs = _paired(base, other)
        if left_out := [run.record.name for run in (*base, *other) if not any(run in pair for pair in pairs)]:
            notes.append(f"{name}: only seeds that both have are compared, without {', '.join(left_out)}.")
        found = _answer_rows(name, pairs, arm)
        if not found:
            notes.append(
                f"{name} and {baseline} share no held-out question. Evaluate both in the same way (midthought evaluate RUN, or "
                "training.validate_every=10). Recipes choose questions by training.seed: compare the same seeds."
            )
        rows += [*found, *_training_reward(name, pairs)]
    firsts = [base[0].settings, *(other[0].settings for _, other in others)]
    keys = dict.fromkeys(key for settings in firsts for key in settings if key != SEED or len(runs) == len(firsts))
    values = {key: [settings.get(key) for settings in firsts] for key in keys}
    differing = {key: row for key, row in values.items() if any(value != row[0] for value in row)}
    return Comparison(names=(baseline, *dict(others)), settings=differing, rows=tuple(rows), notes=tuple(notes))


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the settings that differ, the table of measures, and the notes."""
    if comparison.settings:
        settings = [[name, *(str(value)[:60] for value in row)] for name, row in comparison.settings.items()]
        console.table("Settings that differ", ["setting", *comparison.names], settings)
    columns = ["run", "measure", comparison.names[0], "run's", "difference", "95 % interval", "p", "test"]
    cells: list[list[object]] = []
    for row in comparison.rows:
        measure = row.measure.replace("_", " ") + (f", {row.arm}" if row.arm else "")
        tested: list[object] = [None, None, "not tested"]
        if (test := row.test) is not None:
            p_value = f"{test.p_value:.2g}" if test.p_value >= 0.0001 else "< 0.0001"
            tested = [f"{test.low:+.3f} to {test.high:+.3f}", p_value, f"{test.name}, n = {test.num_pairs}"]
        cells.append([row.run, measure, row.baseline, row.value, row.value - row.baseline, *tested])
    console.table(f"Against {comparison.names[0]}", columns, cells)
    for note in comparison.notes:
        console.note(f"Note: {note}")


# -- measures --------------------------------------------------------------------------------------------------------


def _answer_rows(name: str, pairs: Sequence[Pair], wanted: str | None) -> list[Row]:
    """Returns a row per measure of the last answers of one arm that all runs have."""
    ranks = {arm: rank for rank, arm in enumerate(PREFERRED_ARMS)}
    shared = set.intersection(*(set(run.answers) for pair in pairs for run in pair))
    for arm, step in sorted(shared, key=lambda each: (ranks.get(each[0], len(ranks)), each[0], -each[1])):
        shown = f"{arm} at iteration {step}" if arm.startswith("validation") else arm
        values = {measure: _values(measure, pairs, arm, step) for measure in MEASURES if wanted in (None, arm)}
        if any(values.values()):
            return [_row(name, measure, shown, found, len(pairs) > 1) for measure, found in values.items() if found]
    return []


def _values(measure: str, pairs: Sequence[Pair], arm: str, step: int) -> list[tuple[float, float]]:
    """Returns the paired values that are known: of the seeds, or of the questions that both runs answered."""
    if len(pairs) > 1:
        found = [(one.score(measure, arm, step), other.score(measure, arm, step)) for one, other in pairs]
    else:
        first, second = (run.answers[arm, step] for run in pairs[0])
        found = [(first[question][measure], second[question][measure]) for question in first if question in second]
    return [(one, other) for one, other in found if one is not None and other is not None]


def _row(name: str, measure: str, arm: str, values: Sequence[tuple[float, float]], is_by_seed: bool) -> Row:
    first, second = zip(*values, strict=True)
    test = None
    if is_by_seed:
        test = paired_t(first, second)
    elif measure == "exact_match" and {*first, *second} <= {0.0, 1.0}:
        test = mcnemar([value == 1 for value in first], [value == 1 for value in second])
    elif len(values) > 1:
        test = paired_permutation(first, second)
    return Row(run=name, measure=measure, arm=arm, baseline=fmean(first), value=fmean(second), test=test)


def _training_reward(name: str, pairs: Sequence[Pair]) -> list[Row]:
    """Returns the reward at the end of training, tested by seed."""
    curves = [(one.learning_curve(), other.learning_curve()) for one, other in pairs]
    shared = sorted(set.intersection(*(set(curve) for pair in curves for curve in pair)))
    last = shared[-max(round(len(shared) * LAST_SHARE), 1) :]
    ends = [(fmean(one[step] for step in last), fmean(other[step] for step in last)) for one, other in curves if last]
    return [_row(name, "training_reward", "", ends, is_by_seed=True)] if ends else []


# -- configurations --------------------------------------------------------------------------------------------------


def _configurations(runs: Runs) -> dict[str, Runs]:
    """Groups runs that differ only in `training.seed`, in the order given, by name.

    A seed that occurs a second time starts a further group, so a repeated run is compared with the first one. If all runs are
    seeds of one configuration, each run is a group of its own.
    """
    groups: list[Runs] = []
    for run in runs:
        fits = (
            group for group in groups if not _differs(group[0], run) and run.seed not in [one.seed for one in group]
        )
        if (group := next(fits, None)) is None:
            groups.append([run])
        else:
            group.append(run)
    if len(groups) == 1:
        groups = [[run] for run in runs]
    names = [group[0].record.name + (f" and {len(group) - 1} more" if len(group) > 1 else "") for group in groups]
    if len(set(names)) < len(names):
        names = [f"{name} ({group[0].path})" for name, group in zip(names, groups, strict=True)]
    return dict(zip(names, groups, strict=True))


def _differs(first: ComparedRun, second: ComparedRun) -> bool:
    """Whether two runs differ in more than the seed, or one has no settings."""
    one, other = ({k: v for k, v in run.settings.items() if not k.startswith(_LEFT_OUT)} for run in (first, second))
    return not one or one != other


def _paired(baseline: Runs, other: Runs) -> list[Pair]:
    """Returns one pair per shared seed; without shared seeds, the first runs of both."""
    of_seed = {run.seed: run for run in baseline if run.seed is not None}
    return [(of_seed[run.seed], run) for run in other if run.seed in of_seed] or [(baseline[0], other[0])]


def _notes(runs: Runs) -> Iterator[str]:
    for run in runs:
        if run.state != "finished":
            ends = max((steps[-1][0] for steps in run.record.metrics.get("ppo", {}).values()), default=0)
            yield f"{run.path} is {run.state} (iteration {ends}): only what has been written so far is compared."
        if not run.settings:
            yield f"{run.path} has no config.yaml: its settings are not compared."
    if not any(_differs(runs[0], run) for run in runs[1:]):
        yield "The runs have the same settings (apart from the seed): differences are chance, data or code."
    num_questions = max(int(run.record.summary.get("num_questions") or 0) for run in runs)
    recorded = {arm: len(answers) for run in runs for (arm, _), answers in run.answers.items()}
    shown = max((recorded[arm] for arm in PREFERRED_ARMS if arm in recorded), default=0)
    if 0 < shown < num_questions:
        yield (
            f"{shown} of {num_questions} questions are recorded; tests by question use these. Record all of them with "
            f"checkpoint.record_episodes={num_questions}."
        )


# -- run folders -----------------------------------------------------------------------------------------------------


def _read(path: str | os.PathLike[str]) -> ComparedRun:
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise CheckpointError(f"{folder.path} is not a folder; give the run folder that `midthought train` wrote")
    record = read_run(path)
    is_held = RunLock.is_held(folder.path)
    return ComparedRun(
        path=folder.path,
        state="running" if is_held else "finished" if record.summary else "unfinished",
        settings=flat_keys(read_yaml(folder.config_path)) if folder.config_path.is_file() else {},
        record=record,
        answers=_read_answers(folder.path),
    )


def _read_answers(path: Path) -> dict[tuple[str, int], Answers]:
    found: dict[Any, dict[Any, list[dict[str, float | None]]]] = defaultdict(lambda: defaultdict(list))
    for each in read_page_episodes(path, max_episodes=0, max_bytes=-1):
        if each.arm != TRAINING_ARM and each.arm.split(".")[0] != "before":
            found[each.arm, each.step][each.question].append(_measured(each))
    return {key: {question: _means(rows) for question, rows in answers.items()} for key, answers in found.items()}


def _measured(episode: PageEpisode) -> dict[str, float | None]:
    reward = (episode.facts.get("reward") or {}).get("total")
    return {
        "exact_match": None if episode.right is None else float(episode.right),
        "reward": float(reward) if reward is not None and math.isfinite(reward) else None,
        "calls": episode.facts.get("num_calls"),
        "policy_tokens": float(sum(length for author, _, length in episode.spans if author == "policy")),
    }


def _means(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    return {measure: _mean(row[measure] for row in rows) for measure in MEASURES}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
