"""The guards of a running trainer: logs what they find, ends the run, and saves episodes whose update was not finite."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from midthought.config import RecipeConfig
from midthought.errors import TrainingStoppedError
from midthought.guards.finding import Finding
from midthought.guards.history import ITERATION, VALIDATION
from midthought.guards.monitor import Monitor
from midthought.guards.registry import GUARDS
from midthought.report.run_folder import RunFolder
from midthought.rollout.trajectory_json import save_trajectories
from midthought.trainer.run_writer import RunWriter
from midthought.types import StopReason, Trajectory

_log = logging.getLogger("midthought.guards")

Config = TypeVar("Config", bound=RecipeConfig)
SEED_STEP = 7_919
"""Difference of the sampling seeds of two rollbacks."""

FOLDER = "guards"
"""Folder in a run folder with the episodes of iterations whose gradient was not finite."""


class RollbackRequest(TrainingStoppedError):
    """A finding with the policy `rollback`. If nothing handles it, it ends the run like `stop`."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(_text(finding))
        self.finding = finding


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollback:
    """A rollback of a run. Checkpoints contain it, so that a resumed run keeps its seed and settings."""

    guard: str
    start_step: int
    """First iteration of the problem."""
    to_step: int
    """Iteration of the checkpoint from which the run continued."""
    seed: int
    """Seed of sampling since then."""
    settings: Mapping[str, float]
    """Settings since then, by `section.key`."""


def next_rollback(finding: Finding, config: RecipeConfig, before: Sequence[Rollback], to_step: int) -> Rollback:
    """Returns the rollback for a finding: another seed, and the settings that its guard changes, multiplied by its factors."""
    now = dict(before[-1].settings) if before else {}
    for name, factor in GUARDS[finding.guard].rollback.items():
        section, _, key = name.partition(".")
        now[name] = factor * now.get(name, getattr(getattr(config, section), key))
    seed = config.training.seed + SEED_STEP * (len(before) + 1)
    return Rollback(guard=finding.guard, start_step=finding.start_step, to_step=to_step, seed=seed, settings=now)


def with_rollbacks(config: Config, rollbacks: Sequence[Rollback]) -> Config:
    """Returns the settings with the changes of the last rollback, if there is one."""
    changes: dict[str, dict[str, float]] = defaultdict(dict)
    for name, number in (rollbacks[-1].settings if rollbacks else {}).items():
        section, _, key = name.partition(".")
        changes[section][key] = number
    return config.merged(changes) if changes else config


class RunGuards:
    """The guards of one run. All methods raise `TrainingStoppedError` for a finding with the policy `stop`."""

    def __init__(self, config: RecipeConfig) -> None:
        self.restart(config)

    def restart(self, config: RecipeConfig, rows: Iterable[Mapping[str, Any]] = (), path: Path | None = None) -> None:
        """Forgets everything. `rows`: what the run has logged before; what was wrong then is not reported again. `path`: the run
        folder, if any."""
        self._monitor = Monitor(config.to_dict())
        self._path = path
        for row in rows:
            self._monitor.add(row)

    def before_update(self, metrics: Mapping[str, float]) -> None:
        """Judges the metrics of scoring. Call it before any weight changes."""
        self._tell(self._monitor.before_update(metrics))

    def before_logged_update(self, writer: RunWriter | None, iteration: int, metrics: Mapping[str, float]) -> None:
        """Does the same, and if the metrics stop the run, logs them as the ones of `iteration`."""
        try:
            self.before_update(metrics)
        except TrainingStoppedError:
            if writer is not None:
                writer.log(ITERATION, iteration, metrics)
            raise

    def after_iteration(
        self, iteration: int, metrics: Mapping[str, float], trajectories: Sequence[Trajectory] = ()
    ) -> None:
        """Judges an iteration. Call it after its metrics are logged, before anything is saved."""
        row = {"stage": ITERATION, "step": iteration, **metrics}
        if metrics.get("num_skipped_steps", 0) > 0:
            self.save_episodes(iteration, trajectories)
        self._tell(self._monitor.add(row, error=most_frequent_error(trajectories)))

    def after_validation(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Judges a validation."""
        self._tell(self._monitor.add({"stage": VALIDATION, "step": iteration, **metrics}))

    def after_run(self) -> None:
        """Judges a short run by the iterations that there are."""
        self._tell(self._monitor.finish())

    def save_episodes(self, iteration: int, trajectories: Sequence[Trajectory]) -> None:
        """Writes the complete records of an iteration to `guards/` in the run folder, if there is one."""
        if self._path is not None and trajectories:
            save_trajectories(self._path / FOLDER / f"not_finite_{iteration:06}.jsonl", trajectories)

    def record_rollback(self, rollback: Rollback) -> None:
        """Writes a rollback to the log and to `guards.jsonl`."""
        changes = ", ".join(f"{name}={number:g}" for name, number in rollback.settings.items())
        _log.warning(
            "%s: rollback to iteration %d, with seed %d for sampling and %s",
            rollback.guard,
            rollback.to_step,
            rollback.seed,
            changes,
        )
        if self._path is not None:
            RunFolder(self._path).findings.append([{"rollback": asdict(rollback)}])

    def _tell(self, findings: Sequence[Finding]) -> None:
        if self._path is not None:
            RunFolder(self._path).findings.append(finding.to_dict() for finding in findings)
        for finding in findings:
            if finding.policy == "warn":
                _log.warning("%s: %s", finding.guard, finding)
        for finding in findings:
            if finding.policy == "stop":
                raise TrainingStoppedError(_text(finding))
        for finding in findings:
            if finding.policy == "rollback":
                raise RollbackRequest(finding)


def _text(finding: Finding) -> str:
    return f"{finding} (guard {finding.guard}; guards.policies sets what it does)"


def most_frequent_error(trajectories: Iterable[Trajectory]) -> str | None:
    """Returns the most frequent error of the failed episodes; None if none failed."""
    errors = Counter(t.error for t in trajectories if t.stop_reason is StopReason.FAILED)
    return errors.most_common(1)[0][0] if errors else None
