"""Runs the checks before a run, and reports findings, passed checks and skipped ones."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from midthought.checks.registry import CHECKS, Check, Finding, require_known
from midthought.checks.setup import Setup, SkippedError
from midthought.errors import MidthoughtError, SettingsError


@dataclass(kw_only=True)
class Report:
    """Result of an examination."""

    findings: list[Finding] = field(default_factory=list)
    """What is wrong. The policy `stop`: the run cannot work; `warn`: it will probably not learn."""
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
        try:
            found = list(check.look(setup))
        except (SkippedError, NotImplementedError) as reason:
            self.skipped[check.name] = str(reason)
        except MidthoughtError as error:
            found = [refusal(error)]
        except Exception as error:  # a check must not end a run: what it calls may be the user's code
            self.skipped[check.name] = f"the check raised {type(error).__name__}: {error}"
        if check.name not in self.skipped:
            self.findings += [check.named(finding, setup.config.checks.policies) for finding in found]
            self.passed += [] if found else [check.name]

    def require_possible(self) -> None:
        """Raises `SettingsError` for a finding with which the run cannot work."""
        stopping = [finding for finding in self.findings if finding.policy == "stop"]
        if stopping:
            raise SettingsError("; ".join(f"{finding.check}: {finding}" for finding in stopping))

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        findings = [finding.to_dict() for finding in self.findings]
        rest = {"passed": self.passed, "skipped": self.skipped, "seconds": round(self.seconds, 2)}
        return {"is_healthy": self.is_healthy, "findings": findings, **rest}

    def to_lines(self) -> list[str]:
        """Returns the report as text for a terminal."""
        lines = [line for finding in self.findings for line in finding.to_lines()]
        for reason in dict.fromkeys(self.skipped.values()):
            names = ", ".join(name for name, each in self.skipped.items() if each == reason)
            lines.append(f"skipped: {names}: {reason}")
        count = len(self.findings)
        found = f"{count} finding{'s' * (count != 1)}" if count else "No finding"
        return [*lines, f"{found}; passed: {', '.join(self.passed) or 'none'} ({self.seconds:.1f} s)"]


def examine(setup: Setup, *, fast_only: bool = False) -> Report:
    """Runs the checks on a setup. `fast_only`: those that also run at the start of `fit`.

    Raises `SettingsError` for a wrong name in `checks.policies`.
    """
    report, began, policies = Report(), time.perf_counter(), setup.config.checks.policies
    require_known(policies)
    for each in list(CHECKS):
        if each.when == "fit" or (each.when == "check" and not fast_only):
            if policies.get(each.name) == "off":
                report.skipped[each.name] = "off in checks.policies"
            else:
                report.add(each, setup)
    report.seconds = time.perf_counter() - began
    return report


def refusal(error: BaseException, name: str = "setup") -> Finding:
    """Returns an error that prevents the run as a finding. Its message names the remedy after the last semicolon."""
    observation, _, action = str(error).rpartition("; ")
    return Finding(observation or action, action if observation else "", policy="stop", check=name)
