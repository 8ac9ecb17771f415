"""Findings of the checks during a run: how the report lists and marks them. Does not depend on the checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

STAGES = ("ppo", "validation")
"""Stages whose steps are iterations: their charts have the marks."""
Shown = dict[str, Any]
"""`title` (name of the check, and what the finding is about), `when`, `observation`, `action` and `start_step`."""


def shown_findings(rows: Iterable[Mapping[str, Any]]) -> list[Shown]:
    """Returns the findings, or doubtful transcripts, of `findings.jsonl` in their order, each once: a resumed run may report one
    again."""
    found: dict[Any, Shown] = {}
    for row in rows:
        each = _transcript(row["transcript"]) if isinstance(row.get("transcript"), Mapping) else _finding(row)
        found[each["title"], each["start_step"]] = each
    return list(found.values())


def marks(findings: Sequence[Shown]) -> dict[int, str]:
    """Returns the numbers of the findings that start in each iteration, e.g. `{12: "1, 3"}`."""
    numbers: dict[int, list[str]] = defaultdict(list)
    for number, finding in enumerate(findings, start=1):
        if finding["start_step"]:
            numbers[finding["start_step"]].append(str(number))
    return {step: ", ".join(found) for step, found in numbers.items()}


def _finding(row: Mapping[str, Any]) -> Shown:
    start, step = (int(row.get(key) or 0) for key in ("start_step", "step"))
    return {
        "title": f"{row.get('check')}" + (f": {row['subject']}" if row.get("subject") else ""),
        "when": f"since iteration {start:,}, reported after iteration {step:,}, policy {row.get('policy')}",
        "observation": str(row.get("observation") or ""),
        "action": str(row.get("action") or ""),
        "start_step": start,
    }


def _transcript(file: Mapping[str, Any]) -> Shown:
    return {
        "title": f"doubtful transcript: {file.get('path')}",
        "when": "before training",
        "observation": "; ".join(str(doubt) for doubt in file.get("doubts") or ()),
        "action": "look at it with 'midthought memory inspect'",
        "start_step": 0,
    }
