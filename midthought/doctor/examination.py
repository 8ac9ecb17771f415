"""Runs the checks on a setup, and reports findings, passed checks and skipped ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from midthought.doctor import checks  # noqa: F401  (they register themselves)
from midthought.doctor.registry import CHECKS, Check
from midthought.doctor.setup import Setup, SkippedError
from midthought.errors import MidthoughtError, SettingsError
from midthought.guards.finding import Finding


@dataclass(kw_only=True)
class Report:
    """Result of an examination.

    >>> report = Report(passed=["tokenizer"], skipped={"disk": "no run folder"})
    >>> report.is_healthy
    True
    """

    findings: list[Finding] = field(default_factory=list)
    """What is wrong, with a remedy in `action`. The policy `stop`: the run cannot work; `warn`: it will probably not learn."""
    passed: list[str] = field(default_factory=list)
    """Names of the checks without a finding."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Checks that could not run here, with the reason."""
    seconds: float = 0.0

    @property
    def is_healthy(self) -> bool:
        """Whether there is no finding."""
        return not self.findings

    def add(self, check: Check, setup: Setup) -> None:
        """Adds the result of a check. What it raises is a finding (`MidthoughtError`) or the reason why it is skipped."""
        name = check.name
        try:
            new = [replace(finding, guard=name) for finding in check.look(setup)]
        except SkippedError as reason:
            self.skipped[name] = str(reason)
            return
        except MidthoughtError as error:
            new = [refusal(error, name)]
        except Exception as error:  # a check must not end a run: what it calls may be the user's code
            self.skipped[name] = f"the check raised {type(error).__name__}: {error}"
            return
        self.findings += new
        if not new:
            self.passed.append(name)

    def refuse(self, error: BaseException, name: str) -> None:
        """Adds an error that prevents the run."""
        self.findings.append(refusal(error, name))

    def require_possible(self) -> None:
        """Raises `SettingsError` for a finding with which the run cannot work."""
        stopping = [finding for finding in self.findings if finding.policy == "stop"]
        if stopping:
            raise SettingsError("; ".join(f"{finding.guard}: {finding}" for finding in stopping))

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            "is_healthy": self.is_healthy,
            "findings": [_as_row(finding) for finding in self.findings],
            "passed": self.passed,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 2),
        }

    def to_lines(self) -> list[str]:
        """Returns the report as text for a terminal."""
        lines = []
        for finding in self.findings:
            weight = "the run cannot work" if finding.policy == "stop" else "warning"
            lines.append(f"{finding.guard}  ({weight}{f', {finding.subject}' if finding.subject else ''})")
            lines.append(f"  {finding.observation}")
            lines += [f"  cause {number}: {cause}" for number, cause in enumerate(finding.causes, start=1)]
            lines += [f"  try: {finding.action}"] if finding.action else []
        for reason in dict.fromkeys(self.skipped.values()):
            names = ", ".join(name for name, each in self.skipped.items() if each == reason)
            lines.append(f"skipped: {names}: {reason}")
        count = len(self.findings)
        found = f"{count} finding{'s' * (count != 1)}" if count else "No finding"
        return [*lines, f"{found}; passed: {', '.join(self.passed) or 'none'} ({self.seconds:.1f} s)"]


def examine(setup: Setup, *, fast_only: bool = False) -> Report:
    """Runs the checks on a setup. `fast_only`: without those that sample, call the reward or use the network."""
    report, began = Report(), time.perf_counter()
    for each in list(CHECKS.values()):
        if each.is_fast or not fast_only:
            report.add(each, setup)
    report.seconds = time.perf_counter() - began
    return report


def refusal(error: BaseException, name: str = "setup") -> Finding:
    """Returns an error that prevents the run as a finding. Its message names the remedy after the last semicolon."""
    observation, _, action = str(error).rpartition("; ")
    return Finding(observation=observation or action, action=action if observation else "", policy="stop", guard=name)


def _as_row(finding: Finding) -> Mapping[str, Any]:
    return {
        "check": finding.guard,
        "policy": finding.policy,
        "subject": finding.subject,
        "observation": finding.observation,
        "causes": list(finding.causes),
        "action": finding.action,
    }
