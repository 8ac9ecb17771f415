"""Curves of several configurations in one chart per metric, with 95 % bands: over seeds, or of the episodes behind one value."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from statistics import fmean

from midthought.errors import SettingsError
from midthought.evaluation.comparison.compared_run import (
    SEED,
    ComparedRun,
    Configuration,
    differs,
    read_compared_run,
)
from midthought.evaluation.metrics import wilson_interval
from midthought.evaluation.paired_tests import mean_interval
from midthought.report.curves import MAX_OVERLAID, Band, Chart, Points, SeedCurves


def overlays(found: Sequence[Configuration]) -> dict[str, dict[str, Chart]]:
    """Returns the charts of all metrics that at least two configurations have logged, by stage and metric.

    A configuration with several runs is their mean at the iterations that all of them have done, with the t interval of the mean.
    One run has a band for two metrics: `reward/mean` (1.96 standard errors over the iteration's episodes, which is too
    narrow if the episodes of a group are alike) and the validation's `exact_match` (Wilson's interval).
    """
    stages: dict[str, dict[str, Chart]] = {}
    shown = found[:MAX_OVERLAID]
    for stage, key in dict.fromkeys(
        (stage, key) for one in shown for stage, series in one.runs[0].record.metrics.items() for key in series
    ):
        lines = {one.name: _line(one, stage, key) for one in shown}
        lines = {name: line for name, line in lines.items() if line[0]}
        if len(lines) > 1:
            charts = stages.setdefault(stage, {})
            charts[key] = Chart(
                key, {name: points for name, (points, _) in lines.items()}, {n: b for n, (_, b) in lines.items()}
            )
    return stages


def seed_curves(paths: Sequence[str | os.PathLike[str]]) -> SeedCurves:
    """Returns the curves of runs that differ only in `training.seed`, as means with t intervals, for the report of the first.

    Raises `SettingsError` if two of them have the same seed or differ in another setting, `CheckpointError` if one cannot be
    read.
    """
    runs = [read_compared_run(path) for path in paths]
    for run in runs[1:]:
        if differs(runs[0], run):
            raise SettingsError(
                f"{run.path} differs from {runs[0].path} in more than the seed; compare them: midthought compare"
            )
    seeds = [run.seed for run in runs]
    if len(set(seeds)) < len(seeds):
        raise SettingsError(f"the runs have the seeds {seeds}; give runs with different values of {SEED}")
    one = Configuration(runs[0].name, tuple(runs))
    lines = {
        stage: {key: line for key in series if (line := _line(one, stage, key))[0]}
        for stage, series in runs[0].record.metrics.items()
    }
    return SeedCurves(
        seeds=seeds,
        metrics={stage: {key: points for key, (points, _) in found.items()} for stage, found in lines.items()},
        bands={stage: {key: band for key, (_, band) in found.items()} for stage, found in lines.items()},
    )


def _line(one: Configuration, stage: str, key: str) -> tuple[Points, Band]:
    series = [dict(run.record.metrics.get(stage, {}).get(key, ())) for run in one.runs]
    if len(series) == 1:
        points = sorted(series[0].items())
        return points, _band_of_run(one.runs[0], stage, key, points)
    steps = sorted(set.intersection(*map(set, series)))
    values = {step: [of_run[step] for of_run in series] for step in steps}
    intervals = {step: mean_interval(of_step) for step, of_step in values.items()}
    band = [(step, interval[1], interval[2]) for step, interval in intervals.items() if interval is not None]
    return [(step, fmean(of_step)) for step, of_step in values.items()], band


def _band_of_run(run: ComparedRun, stage: str, key: str, points: Points) -> Band:
    if stage == "validation" and key == "exact_match":
        num = run.settings.get("training.num_validation_questions")
        return (
            [(step, *wilson_interval(value, num)) for step, value in points] if isinstance(num, int) and num > 0 else []
        )
    if key != "reward/mean":
        return []
    series: Mapping[str, Points] = run.record.metrics[stage]
    deviations, counts = (dict(series.get(name, ())) for name in ("reward/std", "episode/count"))
    return [
        (step, value - half, value + half)
        for step, value in points
        if step in deviations and counts.get(step)
        for half in [1.96 * deviations[step] / math.sqrt(counts[step])]
    ]
