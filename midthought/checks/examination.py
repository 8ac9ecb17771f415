"""What the checks look at, and what they report: before a run (`Setup`, `Report`), and during it (`History`, `Monitor`), where
each problem is reported once."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from midthought.checks.registry import CHECKS, Check, Finding, Policy, When, require_known
from midthought.config import RecipeConfig
from midthought.errors import MidthoughtError, SettingsError
from midthought.plan.choices import Choice
from midthought.rollout.episode_source import EpisodeSource
from midthought.rollout.written import PolicyParts
from midthought.tools.call_formats.unread import UnreadCalls
from midthought.types import Task

MAX_TASKS = 256
"""Number of tasks that are examined."""
Row = Mapping[str, float]
"""Metrics of an iteration or a validation, with `step`; a value that is not finite is NaN."""
ITERATION, VALIDATION = "ppo", "validation"
"""Stages of the rows in `metrics.jsonl`."""
_log = logging.getLogger("midthought.checks")
QUIET_STEPS = 20
"""A problem that has ended and comes back within so many iterations is not reported again."""


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
    all_tasks: Sequence[Task] = ()
    """The tasks of a data set; empty for an environment."""
    held_out: Sequence[Task] = ()
    """The tasks of the validation, at most `MAX_TASKS`; empty for an environment."""
    draw: Callable[[int], Sequence[Task]] | None = None
    """Returns so many training tasks to sample, also of an environment. None: the episodes were recorded before."""
    has_replies: bool = False
    """Whether the environment or a user may reply to an answer."""
    policy: PolicyParts | None = None
    source: EpisodeSource | None = None
    """Runs training episodes with the policy."""
    why_no_policy: str = "there is no policy"
    why_not_sampled: str = ""
    """Why no episodes are sampled; empty: they are."""
    memo: dict[str, Any] = field(default_factory=dict)
    """What a check has computed and another one needs."""

    @property
    def tasks(self) -> Sequence[Task]:
        """Some of `all_tasks`, evenly spread, at most `MAX_TASKS`."""
        return self.all_tasks[:: max(1, len(self.all_tasks) // MAX_TASKS)][:MAX_TASKS]

    @property
    def parts(self) -> PolicyParts:
        """The policy's parts."""
        if self.policy is None:
            raise SkippedError(self.why_no_policy)
        return self.policy

    @property
    def known_tasks(self) -> Sequence[Task]:
        """`tasks`, if there are any."""
        if not self.all_tasks:
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


def examine_before_start(setup: Setup) -> None:
    """Runs the fast checks. Logs warnings; raises `SettingsError` for a finding with which the run cannot work."""
    report = examine(setup, fast_only=True)
    log_warnings(report.findings)
    report.require_possible()


def log_warnings(findings: Iterable[Finding]) -> None:
    """Logs the findings with the policy `warn`."""
    for finding in findings:
        if finding.policy == "warn":
            _log.warning("%s: %s", finding.check, finding)


def refusal(error: BaseException, name: str = "setup") -> Finding:
    """Returns an error that prevents the run as a finding. Its message names the remedy after the last semicolon."""
    observation, _, action = str(error).rpartition("; ")
    return Finding(observation or action, action if observation else "", policy="stop", check=name)


class History:
    """Rows of `metrics.jsonl` in order, and the settings as nested plain values (`config.yaml`): the input of a check."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self.iterations: list[Row] = []
        self.validations: list[Row] = []
        self.error: str | None = None
        """The most frequent error of the last iteration's failed episodes, if it is known."""
        self.unread: list[UnreadCalls | None] = []
        """The calls of each iteration that were not run, if its episodes are known."""

    @property
    def step(self) -> int:
        """Number of the last iteration; 0 before the first."""
        return step_of(self.iterations[-1]) if self.iterations else 0

    def setting(self, name: str, otherwise: Any = None) -> Any:
        """Returns the setting `section.key`; `otherwise` if it was not recorded or is `auto`."""
        section, _, key = name.partition(".")
        found = self._settings.get(section, {}).get(key, otherwise)
        return otherwise if found == "auto" else found

    def streak(self, holds: Callable[[Row], bool]) -> list[Row]:
        """Returns the last iterations in a row for which `holds`."""
        others = (number for number, row in enumerate(reversed(self.iterations)) if not holds(row))
        return self.iterations[len(self.iterations) - next(others, len(self.iterations)) :]


def step_of(row: Row) -> int:
    """Returns the iteration of a row."""
    return int(row["step"])


def value(row: Row, name: str) -> float:
    """Returns a metric; NaN, which satisfies no comparison, if it was not logged."""
    return row.get(name, math.nan)


def mean_of(rows: Sequence[Row], name: str) -> float:
    """Returns the mean of a metric over the rows in which it is finite; NaN if there are none."""
    values = [found for row in rows if math.isfinite(found := value(row, name))]
    return math.fsum(values) / len(values) if values else math.nan


class Monitor:
    """Runs the checks over the rows of one run, one by one."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings`: nested plain values, as in `config.yaml`. Raises `SettingsError` for a wrong `checks.policies`."""
        self.history = History(settings)
        self._policies: Mapping[str, Policy] = self.history.setting("checks.policies", {})
        require_known(self._policies)
        self._last_steps: dict[tuple[str, str], int] = {}  # by check and subject

    def add(self, row: Mapping[str, Any], error: str | None = None, unread: UnreadCalls | None = None) -> list[Finding]:
        """Adds a row of `metrics.jsonl`. Returns the findings that are new, or with which the run must not go on.

        `error`: the most frequent error of the iteration's failed episodes. `unread`: its calls that were not run. A row of
        another stage (supervised steps) is ignored.
        """
        numbers = {name: math.nan if found is None else found for name, found in row.items() if name != "stage"}
        if row["stage"] == ITERATION:
            self.history.iterations.append(numbers)
            self.history.unread.append(unread)
            self.history.error = error
        elif row["stage"] == VALIDATION:
            self.history.validations.append(numbers)
        else:
            return []
        return self._look("scoring", "iteration")

    def before_update(self, metrics: Mapping[str, float]) -> list[Finding]:
        """Returns what is new after scoring, before the update of the next iteration. Does not keep the row."""
        self.history.iterations.append({"step": self.history.step + 1, **metrics})
        try:
            return self._look("scoring")
        finally:
            self.history.iterations.pop()

    def _look(self, *times: When) -> list[Finding]:
        new = []
        for each in CHECKS if self.history.iterations else ():
            if each.when in times and self._policies.get(each.name) != "off":
                found = [each.named(finding, self._policies) for finding in each.look(self.history)]
                new += [replace(finding, step=self.history.step) for finding in found if self._is_new(finding)]
        return new

    def _is_new(self, finding: Finding) -> bool:
        """Notes a finding. Returns whether it is new, or the run must not go on."""
        key = finding.check, finding.subject
        before, self._last_steps[key] = self._last_steps.get(key), self.history.step
        return before is None or finding.start_step > before + QUIET_STEPS or finding.policy == "stop"
