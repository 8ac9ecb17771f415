"""Findings of the guards: how the report lists and marks them. Does not depend on the guards."""

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
    """One finding of `guards.jsonl`, one rollback or one doubtful transcript, as the page shows it."""

    title: str
    """Name of the guard, and what the finding is about."""
    when: str
    """Iterations and policy."""
    observation: str
    causes: Sequence[str] = ()
    """The most likely first."""
    action: str = ""
    start_step: int = 0


def shown_findings(rows: Iterable[Mapping[str, Any]]) -> list[ShownFinding]:
    """Returns the findings in the order of their reports. A finding that a resumed run reported again is shown once."""
    found: dict[Any, ShownFinding] = {}
    for row in rows:
        if isinstance(rollback := row.get("rollback"), Mapping):
            found["rollback", len(found)] = _rollback(rollback)
        elif isinstance(file := row.get("transcript"), Mapping):
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
        title=f"{row.get('guard')}: {subject}" if subject else str(row.get("guard")),
        when=f"since iteration {start:,}, reported after iteration {step:,}, policy {row.get('policy')}",
        observation=str(row.get("observation") or ""),
        causes=[str(cause) for cause in row.get("causes") or ()],
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


def _rollback(row: Mapping[str, Any]) -> ShownFinding:
    changed = row.get("settings")
    settings = [f"{name}={value}" for name, value in changed.items()] if isinstance(changed, Mapping) else []
    return ShownFinding(
        title=f"rollback because of {row.get('guard')}",
        when=f"the problem started in iteration {row.get('start_step')}",
        observation=f"The run continued from the checkpoint of iteration {row.get('to_step')}, with sampling seed "
        f"{', '.join([str(row.get('seed')), *settings])}",
    )
