"""Findings of the checks during a run: how the report lists and marks them. Does not depend on the checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midthought.report.templates import macro

STAGES = ("ppo", "validation")
"""Stages whose steps are iterations: their charts have the marks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownFinding:
    """One finding of `findings.jsonl` or one doubtful transcript, as the page shows it."""

    title: str
    """Name of the check, and what the finding is about."""
    when: str
    """Iterations and policy."""
    observation: str
    action: str = ""
    start_step: int = 0


def shown_findings(rows: Iterable[Mapping[str, Any]]) -> list[ShownFinding]:
    """Returns the findings in the order of their reports. A finding that a resumed run reported again is shown once."""
    found: dict[Any, ShownFinding] = {}
    for row in rows:
        if isinstance(file := row.get("transcript"), Mapping):
            found["transcript", str(file.get("path"))] = _transcript(file)
        else:
            finding = _finding(row)
            found[finding.title, finding.start_step] = finding
    return list(found.values())


def findings_list(findings: Sequence[ShownFinding]) -> str:
    """Returns the findings as HTML, numbered from 1; empty if there are none."""
    return macro("findings")(findings) if findings else ""


def marks(findings: Sequence[ShownFinding]) -> dict[int, str]:
    """Returns the numbers of the findings that start in each iteration, e.g. `{12: "1, 3"}`."""
    numbers: dict[int, list[str]] = defaultdict(list)
    for number, finding in enumerate(findings, start=1):
        if finding.start_step:
            numbers[finding.start_step].append(str(number))
    return {step: ", ".join(found) for step, found in numbers.items()}


def _finding(row: Mapping[str, Any]) -> ShownFinding:
    start, step = (int(row.get(key) or 0) for key in ("start_step", "step"))
    subject = row.get("subject")
    return ShownFinding(
        title=f"{row.get('check')}: {subject}" if subject else str(row.get("check")),
        when=f"since iteration {start:,}, reported after iteration {step:,}, policy {row.get('policy')}",
        observation=str(row.get("observation") or ""),
        action=str(row.get("action") or ""),
        start_step=start,
    )


def _transcript(row: Mapping[str, Any]) -> ShownFinding:
    return ShownFinding(
        title=f"doubtful transcript: {row.get('path')}",
        when="before training",
        observation="; ".join(str(doubt) for doubt in row.get("doubts") or ()),
        action="look at it with 'midthought memory inspect'",
    )
