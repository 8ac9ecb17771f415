"""Runs the guards over a run's rows, one by one, and reports each problem once. Used by the trainer and by `midthought guard`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from midthought.guards import answers, episodes, movement, numerics, rewards, tool_use  # noqa: F401  (they register the guards)
from midthought.guards.finding import Finding, Policy
from midthought.guards.history import ITERATION, History
from midthought.guards.registry import GUARDS, Guard, policies_of

QUIET_STEPS = 20
"""A problem that has ended and comes back within so many iterations is not reported again."""
_STRENGTH: tuple[Policy, ...] = ("off", "warn", "stop", "rollback")


class Monitor:
    """The guards of one run. Its result depends only on the rows and the settings.

    >>> monitor = Monitor({})
    >>> monitor.add({"stage": "ppo", "step": 1, "reward/mean": 0.5, "reward/std": 0.5, "num_optimizer_steps": 1})
    []
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings`: nested plain values, as in `config.yaml`. Raises `SettingsError` for a wrong `guards.policies`."""
        self.history = History(settings)
        self.findings: list[Finding] = []
        """All findings so far, in the order of their reports."""
        self._policies = policies_of(self.history.setting("guards.policies", {}))
        self._places: dict[tuple[str, str], int] = {}
        """Place in `findings` of the last report of a guard about a subject."""

    def add(self, row: Mapping[str, Any], error: str | None = None) -> list[Finding]:
        """Adds a row of `metrics.jsonl`. Returns the findings that are new, or with which the run must not go on.

        `error`: the most frequent error of the iteration's failed episodes.
        """
        return self._check(GUARDS.values()) if self.history.add(row, error) else []

    def before_update(self, metrics: Mapping[str, float]) -> list[Finding]:
        """Returns what is new after scoring, before the update of the next iteration. Does not keep the row."""
        self.history.add({"stage": ITERATION, "step": self.history.step + 1, **metrics})
        try:
            return self._check(guard for guard in GUARDS.values() if guard.is_before_update)
        finally:
            self.history.iterations.pop()

    def finish(self) -> list[Finding]:
        """Returns what is new because the run has ended: guards that wait for many iterations judge those that there are."""
        self.history.is_over = True
        return self._check(GUARDS.values())

    def _check(self, guards: Iterable[Guard]) -> list[Finding]:
        if not self.history.iterations:
            return []
        new = []
        for guard in guards:
            if self._policies.get(guard.name, guard.policy) != "off":
                new += [reported for found in guard.check(self.history) if (reported := self._report(guard, found))]
        return new

    def _report(self, guard: Guard, found: Finding) -> Finding | None:
        """Adds a finding, or updates the one that it continues. Returns it if it is new, or if the run must not go on."""
        step = self.history.step
        policy = min(self._policies.get(guard.name, guard.policy), found.at_most, key=_STRENGTH.index)
        found = replace(found, guard=guard.name, step=step, last_step=step, policy=policy)
        place = self._places.get((guard.name, found.subject))
        before = self.findings[place] if place is not None else None
        if place is None or before is None or found.start_step > before.last_step + QUIET_STEPS:
            self._places[guard.name, found.subject] = len(self.findings)
            self.findings.append(found)
            return found
        found = replace(found, start_step=before.start_step, step=before.step)
        self.findings[place] = found
        return found if policy in ("stop", "rollback") else None
