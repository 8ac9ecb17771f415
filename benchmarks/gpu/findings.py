"""What the checks found, as text, Markdown and JSON. Does not depend on torch or on a check."""

from __future__ import annotations

import enum
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn


class Check(NamedTuple):
    """A module with a function `run(machine, report)`, and its weight when the time is divided."""

    number: int
    module: str
    title: str
    weight: float


CHECKS = (
    Check(1, "benchmarks.gpu.hardware", "versions, bandwidth, matmul rate, attention backend", 8),
    Check(2, "benchmarks.gpu.runners", "runner that is selected, error against float32", 12),
    Check(3, "benchmarks.gpu.graphs", "CUDA graphs versus eager: same tokens", 16),
    Check(7, "benchmarks.gpu.agreement", "sampled versus recomputed log-probabilities after 3 updates", 28),
    Check(4, "benchmarks.gpu.decoding", "decoding speed versus the bandwidth bound", 24),
    Check(6, "benchmarks.gpu.learning", "learner: tokens/s, MFU, peak memory, packed versus padded", 42),
    Check(10, "benchmarks.gpu.grpo", "up to 10 GRPO iterations: time per stage", 28),
    Check(13, "benchmarks.gpu.published", "the learner in other libraries' published shapes", 60),
    Check(9, "benchmarks.gpu.one_rank", "one rank of a process group equals no rank", 8),
    Check(5, "benchmarks.gpu.prefill", "prefill of 128 prompts of distinct lengths", 10),
    Check(8, "benchmarks.gpu.fit", "largest batch that fits versus the plan", 14),
    Check(11, "benchmarks.gpu.less_memory", "learner with less memory: peak and seconds of each option", 14),
    Check(
        12, "benchmarks.gpu.engines", "engine beside the learner: memory released, vLLM in process, weight update", 12
    ),
)
"""In the order in which they run: correctness and the required rates first. The weights are about the seconds that a check
takes on an H200. The last one gets what is left, because vLLM starts slowly."""


class Status(enum.StrEnum):
    OK = "ok"
    FAILED = "FAILED"
    """The check ran, and a requirement is not met."""
    ERROR = "error"
    """The check did not run to its end."""
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One figure of a check, with its requirement if it has one; or a part that was left out, with the reason."""

    setting: str
    """Model and type of the weights."""
    name: str
    value: float | int | str
    unit: str = ""
    requirement: str = ""
    is_met: bool | None = None
    is_left_out: bool = False
    is_detail: bool = False
    """In JSON and Markdown only."""

    @property
    def verdict(self) -> str:
        return {None: "", True: "ok", False: "FAILED"}[self.is_met]

    def cells(self) -> tuple[str, ...]:
        value = self.value if isinstance(self.value, str) else _number(self.value)
        return self.setting, self.name, " ".join(f"{value} {self.unit}".split()), self.requirement, self.verdict


@dataclass(kw_only=True, slots=True)
class Outcome:
    """A check and what it has found so far."""

    check: Check
    findings: list[Finding] = field(default_factory=list)
    reason: str = ""
    """Why it was not run, or the error that ended it."""
    status: Status = Status.ERROR
    seconds: float = 0.0

    def end(self, status: Status, reason: str, seconds: float) -> None:
        """A requirement that is not met is reported even if the check broke later. A check without one part that was run was
        not run."""
        if status is Status.OK and self.findings and all(each.is_left_out for each in self.findings):
            status, reason = Status.NOT_RUN, str(self.findings[0].value)
        self.status = Status.FAILED if any(each.is_met is False for each in self.findings) else status
        self.reason, self.seconds = reason, seconds

    @property
    def heading(self) -> str:
        return f"({self.check.number}) {self.check.title}: {self._end}"

    @property
    def summary(self) -> str:
        """One line: the status, the required figures by setting, first those that fail, and the number of parts that were left
        out. Words that are those required are not repeated."""
        figures: dict[str, list[str]] = {}
        for finding in sorted(self.findings, key=lambda finding: finding.is_met is not False):
            value = finding.cells()[2]
            if finding.requirement and value != finding.requirement:
                failed = "" if finding.is_met else ": FAILED"
                figures.setdefault(finding.setting, []).append(
                    f"{finding.name} {value} ({finding.requirement}{failed})"
                )
        settings = [f"{setting}: {', '.join(its)}" if setting else ", ".join(its) for setting, its in figures.items()]
        num_left_out = sum(each.is_left_out for each in self.findings)
        left_out = [f"parts not run: {num_left_out}"] if num_left_out else []
        return "; ".join([f"({self.check.number}) {self._end}", *settings, *left_out])

    @property
    def _end(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.status}{reason}, {self.seconds:.1f} s"

    def to_json(self) -> dict[str, Any]:
        findings = [asdict(finding) for finding in self.findings]
        for finding in findings:
            if isinstance(finding["value"], float) and not math.isfinite(finding["value"]):
                finding["value"] = str(finding["value"])  # JSON has no NaN
        outcome = {"status": str(self.status), "reason": self.reason, "seconds": self.seconds}
        return {"number": self.check.number, "title": self.check.title, **outcome, "findings": findings}


class NotRunError(Exception):
    """The check cannot run here; the message says why."""


class Report:
    """What a check tells: figures as it goes, so that those before an error or a timeout are kept."""

    def __init__(self, send: Callable[[Finding], None]) -> None:
        self._send = send

    def figure(self, setting: str, name: str, value: float | int | str, unit: str = "") -> None:
        self._send(Finding(setting=setting, name=name, value=value, unit=unit))

    def detail(self, setting: str, name: str, value: float | int | str, unit: str = "") -> None:
        """A figure that is not printed, only written to the files."""
        self._send(Finding(setting=setting, name=name, value=value, unit=unit, is_detail=True))

    def require(
        self, setting: str, name: str, value: float | int | str, is_met: bool, requirement: str, unit: str = ""
    ) -> None:
        """A figure that fails the check if `is_met` is false; `requirement` says what is required."""
        self._send(
            Finding(setting=setting, name=name, value=value, unit=unit, requirement=requirement, is_met=bool(is_met))
        )

    def at_most(self, setting: str, name: str, value: float, limit: float, unit: str = "") -> None:
        """NaN fails."""
        self.require(setting, name, value, value <= limit, f"≤ {_number(limit)}", unit)

    def left_out(self, setting: str, reason: str) -> None:
        """A part of the check that is not run."""
        self._send(Finding(setting=setting, name="not run", value=reason, is_left_out=True))

    def not_run(self, reason: str) -> NoReturn:
        raise NotRunError(reason)


def to_text(outcome: Outcome) -> str:
    """Several lines, for a terminal."""
    lines = [outcome.heading]
    for finding in outcome.findings:
        if finding.is_detail:
            continue
        setting, name, value, requirement, verdict = finding.cells()
        required = f"  [{requirement}: {verdict}]" if requirement else ""
        lines.append(f"    {setting:<32} {name:<70} {value}{required}")
    return "\n".join(lines)


def to_summary(outcomes: Sequence[Outcome]) -> str:
    """A line for each check, by its number, and how many there are of each status."""
    lines = [outcome.summary for outcome in sorted(outcomes, key=lambda outcome: outcome.check.number)]
    counts = {status: sum(outcome.status is status for outcome in outcomes) for status in Status}
    return "\n".join(["", "Summary", *lines, ", ".join(f"{count} {status}" for status, count in counts.items())])


def to_markdown(outcomes: Sequence[Outcome]) -> str:
    rows = ["| check | setting | figure | value | required | |", "| --- " * 6 + "|"]
    for outcome in outcomes:
        number = str(outcome.check.number)
        status = f"**{outcome.status}**" + (f": {outcome.reason}" if outcome.reason else "")
        rows.append(_row(f"({number})", "", f"{outcome.check.title} ({outcome.seconds:.0f} s)", "", "", status))
        rows += [_row(number, *finding.cells()) for finding in outcome.findings]
    return "\n".join(rows)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def write_json(path: Path, machine: Mapping[str, Any], outcomes: Sequence[Outcome]) -> None:
    """In one step: a process that is killed meanwhile leaves the earlier file."""
    found = {"machine": machine, "checks": [outcome.to_json() for outcome in outcomes]}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    os.replace(unfinished, path)


def _number(value: float | int) -> str:
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
