"""A comparison as JSON values, as tables on the console, and as a self-contained HTML file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midthought.errors import OutputPathError
from midthought.evaluation.comparison.comparison import AnswerChanges, Comparison, Example, PairComparison
from midthought.evaluation.comparison.overlays import overlays
from midthought.evaluation.comparison.verdict import LABELS, arm_text, p_text
from midthought.regular_files import read_regular_text
from midthought.report.console import Console
from midthought.report.curves import overlaid_curves
from midthought.report.json_lines import json_value
from midthought.report.run_folder import write_whole
from midthought.report.templates import render_page

NUM_EXAMPLES = 20
"""Examples of each direction in JSON and HTML; the console shows `NUM_PRINTED`."""
NUM_PRINTED = 3
MAX_TEXT = 4000
_MARK = '<meta name="generator" content="midthought compare">'


def to_dict(comparison: Comparison) -> dict[str, Any]:
    """Returns the comparison as JSON values."""
    value = {
        "configurations": [
            {
                "name": one.name,
                "runs": [{"path": str(run.path), "seed": run.seed, "state": run.state} for run in one.runs],
            }
            for one in comparison.configurations
        ],
        "settings": comparison.settings,
        "comparisons": [_pair_to_dict(pair) for pair in comparison.pairs],
        "notes": comparison.notes,
        "curves": {
            stage: {
                key: {name: {"points": line, "band": chart.bands[name]} for name, line in chart.lines.items()}
                for key, chart in charts.items()
            }
            for stage, charts in overlays(comparison.configurations).items()
        },
    }
    found: dict[str, Any] = json_value(value)
    return found


def _pair_to_dict(pair: PairComparison) -> dict[str, Any]:
    verdict = pair.verdict
    return {
        "baseline": pair.baseline.name,
        "other": pair.other.name,
        "arm": pair.arm,
        "step": pair.step,
        "num_questions": pair.num_questions,
        "verdict": {
            "difference_shown": verdict.is_shown,
            "measure": verdict.measure,
            "p_value": verdict.p_value,
            "text": verdict.sentence,
        },
        "measures": {
            one.measure: {
                "baseline": one.baseline,
                "other": one.other,
                "test": one.test.to_dict() if one.test else None,
            }
            for one in pair.measures
        },
        "answers": _changes_to_dict(pair.changes) if pair.changes else None,
    }


def _changes_to_dict(changes: AnswerChanges) -> dict[str, Any]:
    return {
        "both_right": changes.both_right,
        "both_wrong": changes.both_wrong,
        "wrong_to_right": len(changes.gained),
        "right_to_wrong": len(changes.lost),
        "examples": {
            "wrong_to_right": _examples(changes.gained),
            "right_to_wrong": _examples(changes.lost),
        },
    }


def _examples(examples: Sequence[Example], limit: int = NUM_EXAMPLES) -> list[dict[str, str]]:
    return [
        {
            "task_id": example.question[0],
            "question": _cut(example.question[1]),
            "expected": _cut(example.expected),
            "baseline": _cut(example.baseline),
            "other": _cut(example.other),
        }
        for example in examples[:limit]
    ]


def _cut(text: str, limit: int = MAX_TEXT) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"


# -- console -------------------------------------------------------------------------------------------------------


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints settings, measures, changed answers and verdicts."""
    names = [one.name for one in comparison.configurations]
    rows = [[name, *map(_setting, values)] for name, values in comparison.settings.items()]
    if rows:
        console.table("Settings that differ", ["setting", *names], rows)
    for pair in comparison.pairs:
        _print_pair(pair, console)
    for note in comparison.notes:
        console.note(f"Note: {note}")


def _print_pair(pair: PairComparison, console: Console) -> None:
    first, second = pair.baseline.name, pair.other.name
    where = f", {arm_text(pair.arm, pair.step)}: {pair.num_questions} questions answered by both" if pair.arm else ""
    columns = ["measure", first, second, "difference", "95 % interval", "p", "test"]
    console.table(f"{second} against {first}{where}", columns, _rows(pair))
    changes = pair.changes
    if changes is not None:
        console.note(
            f"Answers: {len(changes.gained)} wrong→right, {len(changes.lost)} right→wrong, {changes.both_right} right in both, "
            f"{changes.both_wrong} wrong in both."
        )
        for way, examples in (("wrong→right", changes.gained), ("right→wrong", changes.lost)):
            for example in _examples(examples, NUM_PRINTED):
                question, expected = (_cut(" ".join(example[key].split()), 90) for key in ("question", "expected"))
                ends = (" ".join(example[key].split())[-60:] for key in ("baseline", "other"))
                console.note("  {}  {} [{}]  …{} → …{}".format(way, question, expected, *ends))
    console.note(f"Verdict: {pair.verdict.sentence}\n")


def _rows(pair: PairComparison) -> list[list[object]]:
    rows: list[list[object]] = []
    for one in pair.measures:
        test = one.test
        row: list[object] = [LABELS[one.measure], one.baseline, one.other, one.other - one.baseline]
        if test is None:
            row += [None, None, "not tested"]
        else:
            p_value = p_text(test.p_value).removeprefix("p = ").removeprefix("p ")
            row += [
                f"{test.low:+.3f} to {test.high:+.3f}",
                p_value,
                f"{test.name} by {test.unit}, n = {test.num_pairs}",
            ]
        rows.append(row)
    return rows


def _setting(value: Any) -> str:
    return "–" if value is None else _cut(str(value), 60)


# -- HTML ----------------------------------------------------------------------------------------------------------


def write_page(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Writes the comparison as one HTML file that loads nothing. Raises `OutputPathError` if something else is at `path`."""
    target = Path(path)
    if target.is_dir() or (target.exists() and _MARK not in read_regular_text(target, "replace")[:2000]):
        raise OutputPathError(f"{target} exists and is no page of midthought compare; give another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, render_comparison(comparison))
    return target


def render_comparison(comparison: Comparison) -> str:
    """Returns the page. Texts of the runs enter it escaped."""
    charts, chart_points = overlaid_curves(overlays(comparison.configurations))
    values = to_dict(comparison)
    return render_page(
        "compare.html",
        ("curves.js",),
        data={"charts": chart_points},
        names=[one.name for one in comparison.configurations],
        configurations=values["configurations"],
        settings=[(name, [_setting(value) for value in row]) for name, row in comparison.settings.items()],
        pairs=[
            {
                **of_json,
                "rows": _rows(pair),
                "where": arm_text(pair.arm, pair.step) if pair.arm else "",
                "finding": pair.verdict,
            }
            for pair, of_json in zip(comparison.pairs, values["comparisons"], strict=True)
        ],
        notes=comparison.notes,
        curves=charts,
    )
