"""Compares runs with the first one: the settings that differ, and one table with paired tests of the held-out questions that both
answered. Intervals are 95 %, p-values two-sided, differences `run - first run`."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from midthought.config import read_yaml
from midthought.errors import CheckpointError, SettingsError, near_names
from midthought.files.regular import read_json_object, value_errors
from midthought.report.console import Console
from midthought.report.json_lines import json_value
from midthought.report.page_episodes import read_page_episodes
from midthought.report.recorded_episodes import TRAINING_ARM, Episode
from midthought.report.run_folder import CONVERSATION, RunFolder, flat_keys
from midthought.report.run_lock import RunLock
from midthought.report.run_record import EVALUATIONS, RunRecord, last_iteration, read_run

PREFERRED_ARMS = ("after.sampled", "after", "validation.sampled", "validation")
LAST_SHARE = 0.1
"""The training reward is the mean over this share of the iterations that both runs have done, the last ones."""
MEASURES = ("exact_match", "reward", "calls", "policy_tokens")
Answers = dict[tuple[str, str], dict[str, float | None]]
"""By question: the mean of each measure over its episodes; None if unknown."""


class ComparedRun(NamedTuple):
    """One run of a comparison."""

    path: Path
    name: str
    settings: Mapping[str, Any]
    """Flat: `section.key` of `config.yaml`, and `task.key` (`_task_of`)."""
    record: RunRecord
    answers: Mapping[tuple[str, int], Answers]
    """By arm and step; without training episodes and without the arms before training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedTest:
    """A test of the values of the questions that both runs answered."""

    num_pairs: int
    low: float
    high: float
    """Ends of the interval of the mean difference."""
    p_value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measure of a run and of the first run."""

    run: str
    measure: str
    arm: str
    """Whose answers were measured; empty for the training reward."""
    baseline: float
    value: float
    test: PairedTest | None
    """None if there is a single pair, or none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The whole comparison; the first run is the baseline."""

    names: tuple[str, ...]
    settings: dict[str, list[Any]]
    """Settings that differ: one value per run, None if it has no such setting."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = json_value(asdict(self))
        return found


def compare(paths: Sequence[str | os.PathLike[str]], *, arm: str | None = None) -> Comparison:
    """Compares the runs at `paths` with the first one.

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
    named = [place.name for place in places]
    pairs = zip(paths, places, strict=True)
    names = [str(path) if named.count(place.name) > 1 else place.name for path, place in pairs]
    runs = [_read(Path(path), name) for path, name in zip(paths, names, strict=True)]
    arms = {name for run in runs for name, _ in run.answers}
    if arm is not None and arm not in arms:
        raise SettingsError(f"no run has answers of the arm {arm!r}. {near_names(arm, arms)}")
    baseline, *others = runs
    rows, notes = [], list(_notes(runs))
    for other in others:
        if not (found := _answer_rows(baseline, other, arm)):
            notes.append(
                f"{other.name} and {baseline.name} share no held-out question. Evaluate both in the same way (midthought "
                "evaluate RUN, or training.validate_every=10). Recipes choose questions by training.seed: compare the same seeds."
            )
        rows += [*found, *_training_reward(baseline, other)]
    values = {key: [each.settings.get(key) for each in runs] for run in runs for key in run.settings}
    differing = {key: row for key, row in values.items() if any(value != row[0] for value in row)}
    return Comparison(names=tuple(names), settings=differing, rows=tuple(rows), notes=tuple(notes))


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
            interval, number = f"{test.low:+.3f} to {test.high:+.3f}", f"n = {test.num_pairs}"
            tested = [interval, f"{test.p_value:.2g}", f"paired permutation, {number}"]
        cells.append([row.run, measure, row.baseline, row.value, row.value - row.baseline, *tested])
    console.table(f"Against {comparison.names[0]}", columns, cells)
    for note in comparison.notes:
        console.note(f"Note: {note}")


def _answer_rows(baseline: ComparedRun, other: ComparedRun, wanted: str | None) -> list[Row]:
    """Returns a row per measure of the last answers of one arm that both runs have."""
    ranks = {arm: rank for rank, arm in enumerate(PREFERRED_ARMS)}
    shared = [key for key in baseline.answers if key in other.answers and wanted in (None, key[0])]
    for arm, step in sorted(shared, key=lambda each: (ranks.get(each[0], len(ranks)), each[0], -each[1])):
        shown = f"{arm} at iteration {step}" if arm.startswith("validation") else arm
        both = baseline.answers[arm, step], other.answers[arm, step]
        values = {measure: _pairs(measure, *both) for measure in MEASURES}
        if any(values.values()):
            return [_row(other.name, measure, shown, pairs) for measure, pairs in values.items() if pairs]
    return []


def _pairs(measure: str, first: Answers, second: Answers) -> list[tuple[float, float]]:
    """Returns the known values of the questions that both runs answered."""
    found = [(first[question][measure], second[question][measure]) for question in first if question in second]
    return [(one, other) for one, other in found if one is not None and other is not None]


def _row(name: str, measure: str, arm: str, pairs: Sequence[tuple[float, float]]) -> Row:
    first, second = zip(*pairs, strict=True)
    test = paired_permutation(first, second) if len(pairs) > 1 else None
    return Row(run=name, measure=measure, arm=arm, baseline=fmean(first), value=fmean(second), test=test)


def paired_permutation(baseline: Sequence[float], other: Sequence[float]) -> PairedTest:
    """Tests whether paired differences are symmetric around 0, by flipping signs; of right and wrong answers, this is McNemar's
    test. Needs at least two pairs.

    At most 9,999 sign patterns and, for the interval of the mean, bootstrap samples (percentiles), the same ones every time.
    """
    values = np.subtract(other, baseline, dtype=np.float64)
    options = {"n_resamples": 9_999, "batch": 500, "vectorized": True}
    found = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", rng=np.random.default_rng(0), **options
    )
    resampled = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0), **options)
    low, high = map(float, resampled.confidence_interval)
    return PairedTest(num_pairs=len(values), low=low, high=high, p_value=float(found.pvalue))


def _training_reward(baseline: ComparedRun, other: ComparedRun) -> list[Row]:
    """Returns the reward at the end of training. Iterations of one run depend on each other, so it is not tested."""
    one, two = (dict(run.record.metrics.get("ppo", {}).get("reward/mean", ())) for run in (baseline, other))
    shared = sorted(one.keys() & two.keys())
    if not (last := shared[-max(round(len(shared) * LAST_SHARE), 1) :]):
        return []
    ends = fmean(one[step] for step in last), fmean(two[step] for step in last)
    return [_row(other.name, "training_reward", "", [ends])]


def _notes(runs: Sequence[ComparedRun]) -> Iterator[str]:
    for run in runs:
        if not run.record.summary or RunLock.is_held(run.path):
            ends = last_iteration(run.record.metrics)
            yield f"{run.path} is unfinished (iteration {ends}): only what has been written so far is compared."
        if run.record.config is None:
            yield f"{run.path} has no config.yaml: its settings are not compared."
    evaluated = [run.record.metrics.get(stage, {}).get("episode/count", ()) for run in runs for stage in EVALUATIONS]
    counts = [run.record.summary.get("num_questions") or 0 for run in runs]
    num_questions = int(max([*counts, *(number for points in evaluated for _, number in points)]))
    recorded = {arm: len(answers) for run in runs for (arm, _), answers in run.answers.items()}
    shown = max((recorded[arm] for arm in PREFERRED_ARMS if arm in recorded), default=0)
    if 0 < shown < num_questions:
        remedy = f"Record all of them with checkpoint.record_episodes={num_questions}."
        yield f"{shown} of {num_questions} questions are recorded; tests by question use these. {remedy}"


def _read(path: Path, name: str) -> ComparedRun:
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise CheckpointError(f"{folder.path} is not a folder; give the run folder that `midthought train` wrote")
    settings = flat_keys(read_yaml(folder.config_path)) if folder.config_path.is_file() else {}
    return ComparedRun(path, name, settings | _task_of(path / CONVERSATION), read_run(path), _read_answers(path))


def _task_of(file: Path) -> dict[str, Any]:
    """Returns what a run learned from, its system prompt, call format and tools as further settings."""
    with value_errors(file):
        task = read_json_object(file) if file.is_file() else {}
        tools = [tool["definition"]["function"]["name"] for tool in task.get("tools", ())]
        shown = {key: task.get(key) for key in ("system_prompt", "call_format")}
        return flat_keys({"task": {**task.get("learned_from", {}), **shown, "tools": tools}})


def _read_answers(path: Path) -> dict[tuple[str, int], Answers]:
    found: dict[Any, dict[Any, list[dict[str, float | None]]]] = defaultdict(lambda: defaultdict(list))
    for each in read_page_episodes(path, max_episodes=0, max_bytes=0):
        if each.arm != TRAINING_ARM and each.arm.split(".")[0] != "before":
            found[each.arm, each.step][each.question].append(_measured(each))
    return {key: {question: _means(rows) for question, rows in answers.items()} for key, answers in found.items()}


def _measured(episode: Episode) -> dict[str, float | None]:
    reward = (episode.facts.get("reward") or {}).get("total")
    return {
        "exact_match": None if episode.right is None else float(episode.right),
        "reward": float(reward) if reward is not None and math.isfinite(reward) else None,
        "calls": episode.facts.get("num_calls"),
        "policy_tokens": float(sum(length for author, _, length in episode.spans if author == "policy")),
    }


def _means(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    known = {measure: [value for row in rows if (value := row[measure]) is not None] for measure in MEASURES}
    return {measure: fmean(values) if values else None for measure, values in known.items()}
