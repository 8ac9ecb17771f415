"""Compares what a run has written for its readers, logs and results, with the digests in its manifest. Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from midthought.errors import CheckpointError, StorageError
from midthought.manifest import MANIFEST, damage, manifest_of
from midthought.output_folder import kind_of
from midthought.report.run_folder import RunFolder, require_intact_run


def damage_of_results(path: Path) -> str:
    """Returns, in one sentence with the file and the remedy, which file of a run's settings, logs or results is not as it was
    written; empty if all are, or if an earlier version wrote the run.

    The logs are compared once the run has a summary. They may have more lines by then.
    """
    if kind_of(path) != "run":
        return ""
    try:
        require_intact_run(path)
        found = _damage_of_results(path, manifest_of(path) or {})
    except (CheckpointError, StorageError) as error:
        return f"{error}"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        found = f"has a damaged {MANIFEST} ({' '.join(str(error).split())[:200]})"
    return f"{path} {found}; restore the file from a copy, or run the evaluation again" if found else ""


def _damage_of_results(path: Path, manifest: dict[str, Any]) -> str:
    if found := damage(path, manifest.get("results", {})):
        return found
    position = manifest.get("final_logs")
    if not position:
        return ""
    folder = RunFolder(path)
    for name, log, key in (
        ("metrics", folder.metrics, "num_metric_lines"),
        ("trajectories", folder.trajectories, "num_trajectory_lines"),
    ):
        try:
            log.require(position[key], position["log_digests"][name])
        except CheckpointError:
            return f"is damaged: the first {position[key]} lines of {log.path.name} are not as they were written"
    return ""
