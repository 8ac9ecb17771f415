"""What the checks before a run look at (`Setup`), and what they report (`Report`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midthought.checks.registry import CHECKS, Check, Finding, require_known
from midthought.config import RecipeConfig
from midthought.errors import MidthoughtError, SettingsError
from midthought.plan.choices import Choice
from midthought.rollout.local_rollouts import Rollouts
from midthought.rollout.written import PolicyParts
from midthought.types import Task

MAX_TASKS = 256
"""Number of tasks that are examined."""


class SkippedError(Exception):
    """A check that cannot run here. The message is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """A run before its start. Properties raise `SkippedError` if a part is missing, so a check need not test for it."""

    config: RecipeConfig
    choice: Choice | None = None
    """What replaced `auto`, with the plan of the run."""
    path: Path | None = None
    """The run folder. None: the run writes none."""
    tasks: Sequence[Task] = ()
    """Tasks of a data set, at most `MAX_TASKS`; empty for an environment."""
    all_tasks: Sequence[Task] = ()
    """All tasks of the data set."""
    held_out: Sequence[Task] = ()
    """The tasks of the validation, at most `MAX_TASKS`; empty for an environment."""
    draw: Callable[[int], Sequence[Task]] | None = None
    """Returns so many training tasks to sample, also of an environment. None: the episodes were recorded before."""
    has_replies: bool = False
    """Whether the environment or a user may reply to an answer."""
    policy: PolicyParts | None = None
    source: Rollouts | None = None
    """Runs training episodes with the policy."""
    why_no_policy: str = "there is no policy"
    why_not_sampled: str = ""
    """Why no episodes are sampled; empty: they are."""
    memo: dict[str, Any] = field(default_factory=dict)
    """What a check has computed and another one needs."""

    @property
    def parts(self) -> PolicyParts:
        """The policy's parts."""
        if self.policy is None:
            raise SkippedError(self.why_no_policy)
        return self.policy

    @property
    def known_tasks(self) -> Sequence[Task]:
        """`tasks`, if there are any."""
        if not self.tasks:
            raise SkippedError("there are no tasks whose prompts and answers are known before the run")
        return self.tasks


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
        found: list[Finding] = []
        try:
            for finding in check.look(setup):
                found.append(finding)  # those before an error count
        except (SkippedError, NotImplementedError) as reason:
            self.skipped[check.name] = str(reason)
        except MidthoughtError as error:
            found.append(refusal(error))
        except Exception as error:  # a check must not end a run: what it calls may be the user's code
            self.skipped[check.name] = f"the check raised {type(error).__name__}: {error}"
        self.findings += [check.named(finding, setup.config.checks.policies) for finding in found]
        self.passed += [] if found or check.name in self.skipped else [check.name]

    def require_possible(self) -> None:
        """Raises `SettingsError` for a finding with which the run cannot work."""
        if stopping := [f"{finding.check}: {finding}" for finding in self.findings if finding.policy == "stop"]:
            raise SettingsError("; ".join(stopping))

    def to_lines(self) -> list[str]:
        """Returns the report as text for a terminal."""
        lines = [line for finding in self.findings for line in finding.to_lines()]
        for reason in dict.fromkeys(self.skipped.values()):
            lines += [f"skipped: {', '.join(name for name, why in self.skipped.items() if why == reason)}: {reason}"]
        count = len(self.findings)
        found = f"{count} finding{'s' * (count != 1)}" if count else "No finding"
        return [*lines, f"{found}; passed: {', '.join(self.passed) or 'none'} ({self.seconds:.1f} s)"]


def examine(setup: Setup, *, fast_only: bool = False) -> Report:
    """Runs the checks, with `fast_only` only those marked `fit`. Raises `SettingsError` for a wrong `checks.policies`."""
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
