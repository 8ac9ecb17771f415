"""`midthought guard RUN`: runs the guards on a run folder, of a finished run or of one that is still running."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from typing import Any

from midthought.config import read_yaml
from midthought.errors import CheckpointError
from midthought.guards.finding import Finding
from midthought.guards.monitor import Monitor
from midthought.guards.registry import GUARDS
from midthought.report.run_folder import RunFolder


def judge(path: str | os.PathLike[str]) -> list[Finding]:
    """Returns what the guards find in the run at `path`, in the order in which they would have reported it.

    Reads `metrics.jsonl`, `config.yaml` (policies and limits) and the errors in `trajectories.jsonl`; changes nothing. Raises
    `CheckpointError` if there are no metrics.
    """
    folder = RunFolder(path)
    if not folder.metrics.num_lines:
        raise CheckpointError(
            f"{folder.path} has no {folder.metrics_path.name}; give the folder of a run that has done an iteration"
        )
    monitor = Monitor(_settings(folder))
    errors = _errors(folder)
    for row in folder.metrics.read():
        monitor.add(row, errors.get(int(row.get("step") or 0)))
    if folder.summary_path.is_file():
        monitor.finish()
    return monitor.findings


def _settings(folder: RunFolder) -> dict[str, Any]:
    """Returns the run's settings, without policies of guards that are not registered here (a user's own)."""
    settings = dict(read_yaml(folder.config_path)) if folder.config_path.is_file() else {}
    guards = dict(settings.get("guards") or {})
    guards["policies"] = {name: policy for name, policy in guards.get("policies", {}).items() if name in GUARDS}
    return {**settings, "guards": guards}


def _errors(folder: RunFolder) -> dict[int, str]:
    """Returns the most frequent error of the recorded training episodes, by iteration."""
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for row in folder.trajectories.read():
        if row.get("arm") == "train" and row.get("error"):
            found[int(row["step"])][row["error"]] += 1
    return {step: errors.most_common(1)[0][0] for step, errors in found.items()}
