"""The checks of a trainer: logs what they find, ends the run, and saves episodes whose update was not finite."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from midthought.checks.examination import ITERATION, VALIDATION, Monitor, Setup, examine
from midthought.checks.registry import Finding
from midthought.config import RecipeConfig
from midthought.errors import TrainingStoppedError
from midthought.rollout.trajectory_json import save_trajectories
from midthought.tokenization import Renderer
from midthought.tools.call_formats.unread import UnreadCallReader
from midthought.trainer.rollouts import PromptBuilder
from midthought.trainer.run import Run
from midthought.types import StopReason, Trajectory

_log = logging.getLogger("midthought.checks")

FOLDER = "not_finite"
"""Folder in a run folder with the episodes of iterations whose gradient was not finite."""


def examine_before_start(setup: Setup) -> None:
    """Runs the fast checks. Logs warnings; raises `SettingsError` for a finding with which the run cannot work."""
    report = examine(setup, fast_only=True)
    _log_warnings(report.findings)
    report.require_possible()


def _log_warnings(findings: Iterable[Finding]) -> None:
    for finding in findings:
        if finding.policy == "warn":
            _log.warning("%s: %s", finding.check, finding)


class RunChecks:
    """The checks of one run. All methods raise `TrainingStoppedError` for a finding with the policy `stop`."""

    def __init__(self, config: RecipeConfig, renderer: Renderer, prompts: PromptBuilder, run: Run) -> None:
        """Raises `SettingsError` for an unknown check in `checks.policies`."""
        self._reader = UnreadCallReader(renderer, prompts.call_format, prompts.registry)
        self._run = run
        self.restart(config)

    def restart(self, config: RecipeConfig, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Forgets everything. `rows`: what the run has logged before; what was wrong then is not reported again."""
        self._monitor = Monitor(config.to_dict())
        for row in rows:
            self._monitor.add(row)

    def before_update(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Judges the metrics of scoring, before any weight changes. If they stop the run, logs them under `iteration`."""
        try:
            self._tell(self._monitor.before_update(metrics))
        except TrainingStoppedError:
            self._run.log(ITERATION, iteration, metrics)
            raise

    def after_iteration(
        self, iteration: int, metrics: Mapping[str, float], trajectories: Sequence[Trajectory] = ()
    ) -> None:
        """Judges an iteration. Call it after its metrics are logged, before anything is saved."""
        row = {"stage": ITERATION, "step": iteration, **metrics}
        if metrics.get("num_skipped_steps", 0) > 0:
            self.save_episodes(iteration, trajectories)
        errors = Counter(t.error for t in trajectories if t.stop_reason is StopReason.FAILED)
        error = errors.most_common(1)[0][0] if errors else None
        self._tell(self._monitor.add(row, error=error, unread=self._reader.read(trajectories)))

    def after_validation(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Judges a validation."""
        self._tell(self._monitor.add({"stage": VALIDATION, "step": iteration, **metrics}))

    def save_episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        """Writes the complete records of an iteration to `not_finite/` in the run folder, if there is one."""
        if self._run.path is not None and trajectories:
            save_trajectories(self._run.path / FOLDER / f"{iteration:06}.jsonl", trajectories)

    def _tell(self, findings: Sequence[Finding]) -> None:
        if self._run.folder is not None:
            self._run.folder.findings.append(finding.to_dict() for finding in findings)
        _log_warnings(findings)
        for finding in findings:
            if finding.policy == "stop":
                raise TrainingStoppedError(f"{finding} (check {finding.check}; checks.policies sets what it does)")
