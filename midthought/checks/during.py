"""The checks during one run: what it has logged so far, and each problem reported once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from midthought.checks.registry import CHECKS, Finding, Policy, When, require_known
from midthought.tools.call_formats.unread import UnreadCalls

Row = Mapping[str, float]
"""Metrics of an iteration or a validation, with `step`; a value that is not finite is NaN."""
ITERATION, VALIDATION = "ppo", "validation"
"""Stages of the rows in `metrics.jsonl`."""
QUIET_STEPS = 20
"""A problem that has ended and comes back within so many iterations is not reported again."""


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
