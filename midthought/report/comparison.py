"""Compares runs with the first one: the settings that differ, and one table of paired tests.

Runs that differ only in `training.seed` are the seeds of one configuration. With two or more seeds in common the pairs of a test
are seeds, else they are the held-out questions that both answered.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from midthought.config import read_yaml
from midthought.errors import CheckpointError, SettingsError, near_names
from midthought.report.console import Console
from midthought.report.json_lines import json_value
from midthought.report.paired_tests import PairedTest, mcnemar, paired_permutation, paired_t
from midthought.report.recording import FOLDER as RECORDING_FOLDER
from midthought.report.recording import arm_and_step, read_rows, recorded_files
from midthought.report.run_folder import RunFolder, flat_keys
from midthought.report.run_lock import RunLock
from midthought.report.run_record import RunRecord, is_right, read_run

SEED = "training.seed"
PREFERRED_ARMS = ("after.sampled", "after", "validation.sampled", "validation")
LAST_SHARE = 0.1
"""The training reward is the mean over this share of the iterations that all compared runs have done, the last ones."""
_SECTIONS_OF_NO_INTEREST = ("checkpoint.", "checks.")
"""Settings of these sections change what is stored and reported, so runs that differ in them are seeds of one configuration."""

Question = tuple[str, str]
"""A task's id and its text: the same id with another text is another question."""
Answers = dict[Question, list[dict[str, float | None]]]
"""Values of a question's episodes: `exact_match`, `reward`, `calls` and `policy_tokens`; None if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRun:
    """One run of a comparison."""

    path: Path
    state: str
    """`finished`, `running` (a process works in the folder), or `unfinished` (it was stopped before its last evaluation)."""
    settings: Mapping[str, Any]
    """Flat: `section.key`; empty without `config.yaml`."""
    record: RunRecord
    answers: Mapping[str, Mapping[int, Answers]]
    """arm → step → answers; without training episodes and without the arms before training."""

    @property
    def seed(self) -> Any:
        return self.settings.get(SEED)

    def exact_match(self, arm: str, step: int) -> float | None:
        """Returns the exact match over all questions of an arm as the run has logged it; None if it has not."""
        if arm.startswith("validation"):
            return dict(self.record.metrics.get(arm, {}).get("exact_match", ())).get(step)
        value = self.record.summary.get(f"{arm}.exact_match", self.record.summary.get(f"{arm}_exact_match"))
        return None if value is None else float(value)

    def learning_curve(self) -> dict[int, float]:
        """Returns the mean reward of the training episodes by iteration, from the first stage of training that has one."""
        stages = (s for name, s in self.record.metrics.items() if not name.startswith("validation"))
        return next((dict(s["reward/mean"]) for s in stages if s.get("reward/mean")), {})


Runs = tuple[ComparedRun, ...]


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
    repeated = [str(path) for number, path in enumerate(paths) if places[number] in places[:number]]
    if repeated:
        raise SettingsError(f"{repeated[0]} is given twice; give two different runs")
    if len(paths) < 2:
        raise SettingsError(f"{len(paths)} run given; give two or more, the first one is the baseline")
    runs = [_read(path) for path in paths]
    arms = {name for run in runs for name in run.answers}
    if arm is not None and arm not in arms:
        raise SettingsError(f"no run has answers of the arm {arm!r}. {near_names(arm, arms)}")
    (baseline, base), *others = _configurations(runs).items()
    rows, notes = [], list(_notes(runs))
    for name, other in others:
        pairs = _paired(base, other)
        used = [run for pair in pairs for side in pair for run in side]
        if left_out := [run.record.name for run in (*base, *other) if run not in used]:
            notes.append(f"{name}: only seeds that both have are compared, without {', '.join(left_out)}.")
        found = [*_answer_rows(name, pairs, used, arm), *_training_reward(name, pairs, used)]
        if not any(row.arm for row in found):
            notes.append(
                f"{name} and {baseline} share no held-out question. Evaluate both in the same way (midthought evaluate RUN, or "
                "training.validate_every=10). Recipes choose questions by training.seed: compare the same seeds."
            )
        rows += found
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
        measure = f"{row.measure.replace('_', ' ')}, {row.arm}" if row.arm else row.measure.replace("_", " ")
        test = row.test
        tested: list[object] = [None, None, "not tested"]
        if test is not None:
            p_value = f"{test.p_value:.2g}" if test.p_value >= 0.0001 else "< 0.0001"
            tested = [f"{test.low:+.3f} to {test.high:+.3f}", p_value, f"{test.name}, n = {test.num_pairs}"]
        cells.append([row.run, measure, row.baseline, row.value, row.value - row.baseline, *tested])
    console.table(f"Against {comparison.names[0]}", columns, cells)
    for note in comparison.notes:
        console.note(f"Note: {note}")


# -- measures --------------------------------------------------------------------------------------------------------


def _answer_rows(
    name: str, pairs: Sequence[tuple[Runs, Runs]], used: Sequence[ComparedRun], wanted: str | None
) -> list[Row]:
    """Returns a row per measure of the last answers of one arm to the questions that all runs of a pair answered."""
    arms = [arm for arm in used[0].answers if all(arm in run.answers for run in used)]
    arms.sort(key=lambda arm: PREFERRED_ARMS.index(arm) if arm in PREFERRED_ARMS else len(PREFERRED_ARMS))
    for arm in arms if wanted is None else [arm for arm in arms if arm == wanted]:
        for step in sorted(set.intersection(*(set(run.answers[arm]) for run in used)), reverse=True):
            shown = f"{arm} at iteration {step}" if arm.startswith("validation") else arm
            rows = [
                Row(run=name, measure=measure, arm=shown, baseline=fmean(first), value=fmean(second), test=test)
                for measure in ("exact_match", "reward", "calls", "policy_tokens")
                for first, second, test in _tested(measure, pairs, arm, step)
            ]
            if rows:
                return rows
    return []


def _tested(
    measure: str, pairs: Sequence[tuple[Runs, Runs]], arm: str, step: int
) -> Iterator[tuple[Sequence[float], Sequence[float], PairedTest | None]]:
    """Yields the paired values of a measure with their test, if every pair has a question with a value in all of its runs.

    If the pairs are seeds, the exact match is the one that the runs have logged over all of their questions.
    """
    scores = [_shared_values(measure, pair, arm, step) for pair in pairs]
    if not all(scores):
        return
    if len(pairs) > 1:
        logged = [
            [run.exact_match(arm, step) for (run,) in pair] if measure == "exact_match" else [None] for pair in pairs
        ]
        means = [tuple(map(fmean, zip(*values, strict=True))) for values in scores]
        values = [one if None in of_run else of_run for one, of_run in zip(means, logged, strict=True)]
        first, second = zip(*values, strict=True)
        yield first, second, paired_t(first, second)
        return
    first, second = zip(*scores[0], strict=True)
    if measure == "exact_match" and {*first, *second} <= {0.0, 1.0}:
        yield first, second, mcnemar([value == 1 for value in first], [value == 1 for value in second])
    else:
        yield first, second, paired_permutation(first, second) if len(first) > 1 else None


def _shared_values(measure: str, pair: tuple[Runs, Runs], arm: str, step: int) -> list[tuple[float, float]]:
    """Returns for each question of the pair the mean over the runs of each side, if all runs have a value."""
    found = []
    for question in pair[0][0].answers[arm][step]:
        sides = [[_mean(measure, run.answers[arm][step].get(question, [])) for run in runs] for runs in pair]
        if not any(value is None for side in sides for value in side):
            first, second = (fmean(value for value in side if value is not None) for side in sides)
            found.append((first, second))
    return found


def _mean(measure: str, answers: Iterable[Mapping[str, float | None]]) -> float | None:
    values = [value for answer in answers if (value := answer[measure]) is not None]
    return fmean(values) if values else None


def _training_reward(name: str, pairs: Sequence[tuple[Runs, Runs]], used: Sequence[ComparedRun]) -> list[Row]:
    """Returns the reward at the end of training, tested by seed."""
    shared = sorted(set.intersection(*(set(run.learning_curve()) for run in used)))
    if not shared:
        return []
    last = shared[-max(round(len(shared) * LAST_SHARE), 1) :]
    values = [[fmean(run.learning_curve()[step] for run in runs for step in last) for runs in pair] for pair in pairs]
    first, second = zip(*values, strict=True)
    test = paired_t(first, second)
    return [Row(run=name, measure="training_reward", arm="", baseline=fmean(first), value=fmean(second), test=test)]


# -- configurations --------------------------------------------------------------------------------------------------


def _configurations(runs: Sequence[ComparedRun]) -> dict[str, Runs]:
    """Groups runs that differ only in `training.seed`, in the order given, by name.

    A seed that occurs a second time starts a further group, so a repeated run is compared with the first one. If all runs are
    seeds of one configuration, each run is a group of its own.
    """
    groups: list[list[ComparedRun]] = []
    for run in runs:
        fits = (
            group for group in groups if run.seed not in [one.seed for one in group] and not _differs(group[0], run)
        )
        group = next(fits, None) if run.settings else None
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    if len(groups) == 1:
        groups = [[run] for run in runs]
    names = [group[0].record.name + (f" and {len(group) - 1} more" if len(group) > 1 else "") for group in groups]
    if len(set(names)) < len(names):
        names = [f"{name} ({group[0].path})" for name, group in zip(names, groups, strict=True)]
    return dict(zip(names, map(tuple, groups), strict=True))


def _differs(first: ComparedRun, second: ComparedRun) -> bool:
    """Whether two runs differ in more than the seed. A setting that one of them does not have is not compared."""
    if _sections(first) != _sections(second):
        return True
    shared = first.settings.keys() & second.settings.keys() - {SEED}
    compared = (name for name in shared if not name.startswith(_SECTIONS_OF_NO_INTEREST))
    return any(first.settings[name] != second.settings[name] for name in compared)


def _sections(run: ComparedRun) -> set[str]:
    return {name.partition(".")[0] for name in run.settings}


def _paired(baseline: Runs, other: Runs) -> list[tuple[Runs, Runs]]:
    """Returns one pair per shared seed; without shared seeds, all runs of both as one pair."""
    first, second = ({run.seed: run for run in runs if run.seed is not None} for runs in (baseline, other))
    return [((first[seed],), (second[seed],)) for seed in first if seed in second] or [(baseline, other)]


def _notes(runs: Sequence[ComparedRun]) -> Iterator[str]:
    for run in runs:
        if run.state != "finished":
            ends = max((steps[-1][0] for steps in run.record.metrics.get("ppo", {}).values()), default=0)
            yield f"{run.path} is {run.state} (iteration {ends}): only what has been written so far is compared."
        if not run.settings:
            yield f"{run.path} has no config.yaml: its settings are not compared."
        if run.settings and runs[0].settings and (only := _sections(runs[0]) ^ _sections(run)):
            yield f"{run.path} has other sections of settings ({', '.join(sorted(only))}): it is a run of another recipe."
    if not any(_differs(runs[0], run) for run in runs[1:]):
        yield "The runs have the same settings (apart from the seed): differences are chance, data or code."
    recorded = {arm: max(map(len, steps.values())) for run in runs for arm, steps in run.answers.items()}
    num_questions = max(int(run.record.summary.get("num_questions") or 0) for run in runs)
    shown = max((recorded[arm] for arm in PREFERRED_ARMS if arm in recorded), default=0)
    if shown and shown < num_questions:
        yield (
            f"{shown} of {num_questions} questions are recorded; tests by question use these. Record all of them with "
            f"evaluation.num_shown={num_questions} or checkpoint.record_episodes={num_questions}."
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
        answers=_read_answers(folder),
    )


def _read_answers(folder: RunFolder) -> dict[str, dict[int, Answers]]:
    """Reads `trajectories.jsonl`, and `recording/` for an arm of which it has more questions."""
    found = _by_question(folder.trajectories.read())
    paths = recorded_files(folder.path / RECORDING_FOLDER)
    rows = (row for path in paths if _is_held_out(arm_and_step(path)[0]) for row in read_rows(path))
    for arm, steps in _by_question(rows).items():
        for step, answers in steps.items():
            shown = found.setdefault(arm, {})
            if len(answers) > len(shown.get(step, {})):
                shown[step] = answers
    return found


def _by_question(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, Answers]]:
    found: dict[str, dict[int, Answers]] = {}
    for row in rows:
        if _is_held_out(arm := str(row.get("arm"))):
            question = (str(row.get("task_id")), str(row.get("question")))
            step = found.setdefault(arm, {}).setdefault(int(row.get("step") or 0), {})
            step.setdefault(question, []).append(_values(row))
    return found


def _is_held_out(arm: str) -> bool:
    return arm != "train" and arm.split(".")[0] != "before"


def _values(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the measures of a row of `trajectories.jsonl` or of a recording."""
    reward, right = (row.get("reward") or {}).get("total"), is_right(row)
    spans = [(span.get("kind"), span.get("num_tokens") or 0) for span in row.get("spans") or []]
    spans += [span for segment in row.get("segments") or [] for span in segment["spans"]]
    return {
        "exact_match": None if right is None else float(right),
        "reward": float(reward) if reward is not None and math.isfinite(reward) else None,
        "calls": row.get("num_calls"),
        "policy_tokens": float(sum(length for author, length in spans if author == "policy")),
    }
