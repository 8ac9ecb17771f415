"""Reads what a comparison needs from a run folder: settings, metrics, summary, and the answers of its evaluations."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from midthought.config import read_yaml
from midthought.errors import CheckpointError
from midthought.report.recording import FOLDER as RECORDING_FOLDER
from midthought.report.recording import arm_and_step, read_rows, recorded_files
from midthought.report.run_folder import RunFolder, flat_keys
from midthought.report.run_lock import RunLock
from midthought.report.run_record import RunRecord, is_right, read_run

SEED = "training.seed"
_SECTIONS_OF_NO_INTEREST = ("checkpoint.", "guards.")
"""Settings of these sections change what is stored and reported, so runs that differ in them are seeds of one configuration."""
Question = tuple[str, str]
"""A task's id and its text: the same id with another text is another question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One held-out episode."""

    right: bool | None
    """None if it was not judged."""
    reward: float | None
    num_calls: int | None
    num_policy_tokens: int
    expected: str
    text: str
    """Everything after the first prompt."""


AnswersByQuestion = dict[Question, list[Answer]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRun:
    """One run of a comparison."""

    path: Path
    name: str
    state: str
    """`finished`, `running` (a process works in the folder), or `unfinished` (it was stopped before its last evaluation)."""
    settings: Mapping[str, Any]
    """Flat: `section.key`; empty without `config.yaml`."""
    record: RunRecord
    answers: Mapping[str, Mapping[int, AnswersByQuestion]]
    """arm → step → question → answers; without training episodes and without the arms before training."""

    @property
    def seed(self) -> Any:
        return self.settings.get(SEED)

    @property
    def sections(self) -> set[str]:
        return {name.partition(".")[0] for name in self.settings}

    def exact_match(self, arm: str, step: int) -> float | None:
        """Returns the exact match over all questions of an arm as the run has logged it; None if it has not."""
        if arm == "validation":
            return dict(self.record.metrics.get("validation", {}).get("exact_match", ())).get(step)
        value = self.record.summary.get(f"{arm}.exact_match", self.record.summary.get(f"{arm}_exact_match"))
        return None if value is None else float(value)

    def learning_curve(self) -> dict[int, float]:
        """Returns the mean reward of the training episodes by iteration, from the first stage that has one."""
        for series in self.record.metrics.values():
            if points := series.get("reward/mean"):
                return dict(points)
        return {}


def read_compared_run(path: str | os.PathLike[str]) -> ComparedRun:
    """Reads the run at `path`. Raises `CheckpointError` if there is no run or a file of it cannot be read, `SettingsError` if
    its settings cannot be read."""
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise CheckpointError(f"{folder.path} is not a folder; give the run folder that `midthought train` wrote")
    record = read_run(path)
    settings = flat_keys(read_yaml(folder.config_path)) if folder.config_path.is_file() else {}
    is_held = RunLock.is_held(folder.path)
    return ComparedRun(
        path=folder.path,
        name=record.name,
        state="running" if is_held else "finished" if record.summary else "unfinished",
        settings=settings,
        record=record,
        answers=_read_answers(folder),
    )


def differs(first: ComparedRun, second: ComparedRun) -> bool:
    """Whether two runs differ in more than the seed. A setting that one of them does not have is not compared."""
    if first.sections != second.sections:
        return True
    shared = first.settings.keys() & second.settings.keys() - {SEED}
    compared = (name for name in shared if not name.startswith(_SECTIONS_OF_NO_INTEREST))
    return any(first.settings[name] != second.settings[name] for name in compared)


def _read_answers(folder: RunFolder) -> dict[str, dict[int, AnswersByQuestion]]:
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


def _by_question(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, AnswersByQuestion]]:
    found: dict[str, dict[int, AnswersByQuestion]] = {}
    for row in rows:
        if _is_held_out(arm := str(row.get("arm"))):
            question = (str(row.get("task_id")), str(row.get("question")))
            step = found.setdefault(arm, {}).setdefault(int(row.get("step") or 0), {})
            step.setdefault(question, []).append(_answer(row))
    return found


def _is_held_out(arm: str) -> bool:
    return arm != "train" and arm.split(".")[0] != "before"


def _answer(row: Mapping[str, Any]) -> Answer:
    spans = list(_recorded_spans(row) if "segments" in row else _shown_spans(row))
    reward = (row.get("reward") or {}).get("total")
    return Answer(
        right=is_right(row),
        reward=float(reward) if reward is not None and math.isfinite(reward) else None,
        num_calls=row.get("num_calls"),
        num_policy_tokens=sum(length for author, length, _ in spans if author == "policy"),
        expected=str(row.get("answer")),
        text="".join(text for _, _, text in spans[1:]),
    )


def _shown_spans(row: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yields author, number of tokens and text of each span of a row of `trajectories.jsonl`."""
    for span in row.get("spans") or []:
        yield str(span.get("kind")), int(span.get("num_tokens") or 0), str(span.get("text"))


def _recorded_spans(row: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """The same of a row of a recording."""
    for segment in row["segments"]:
        texts = iter(segment["texts"])
        for author, length in segment["spans"]:
            yield author, length, "".join(islice(texts, length))


@dataclass(frozen=True, slots=True)
class Configuration:
    """Runs that differ only in their seed."""

    name: str
    runs: tuple[ComparedRun, ...]

    @property
    def by_seed(self) -> dict[Any, ComparedRun]:
        return {run.seed: run for run in self.runs}


def configurations(runs: Sequence[ComparedRun]) -> list[Configuration]:
    """Groups runs that differ only in `training.seed`, in the order given.

    A seed that occurs a second time starts a further group, so a repeated run is compared with the first one. If all runs are
    seeds of one configuration, each run is a group of its own.
    """
    groups: list[list[ComparedRun]] = []
    for run in runs:
        fits = (group for group in groups if run.seed not in [one.seed for one in group] and not differs(group[0], run))
        group = next(fits, None) if run.settings else None
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    if len(groups) == 1:
        groups = [[run] for run in runs]
    names = [_name(group) for group in groups]
    if len(set(names)) < len(names):
        names = [f"{name} ({group[0].path})" for name, group in zip(names, groups, strict=True)]
    return [Configuration(name, tuple(group)) for name, group in zip(names, groups, strict=True)]


def _name(group: Sequence[ComparedRun]) -> str:
    if len(group) == 1:
        return group[0].name
    letters = zip(*(run.name for run in group), strict=False)
    shared = "".join(first for first, *others in takewhile(lambda each: len(set(each)) == 1, letters))
    shared = shared.rstrip("-_. ").removesuffix("seed").rstrip("-_. ")
    return f"{shared or group[0].name} ({len(group)} seeds)"
