"""The run folder: everything that a run writes, and the only input of the report, a resumed run or another tool.

Defines file names and formats. Does not depend on the learner or on the meaning of metrics.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from midthought.config import Change, RecipeConfig, Section, changes_between, read_yaml
from midthought.config.yaml_files import SAFE_DUMPER, SAFE_LOADER
from midthought.errors import CheckpointError, StorageError, UserError
from midthought.files.output_folder import (
    FORMAT,
    MANIFEST,
    damage_in,
    describe_text,
    descriptions,
    kind_of,
    manifest_of,
    mark,
    require_ours,
)
from midthought.files.regular import atomic_path, read_regular_text, value_errors
from midthought.report.json_lines import JsonLines, json_value
from midthought.report.run_lock import RunLock, command, versions
from midthought.report.trackers import TrackedRun, Trackers

PROGRESS, CONVERSATION = "progress.json", "conversation.json"
"""Files with the stages that are done; with prompts, tools and what is learned from."""


class RunFolder:
    """`runs/NAME/` with the files and folders that the attributes name.

    Nothing is created on disk before the first write, so a run with invalid settings leaves nothing behind. A
    checkpoint stores `log_position`; a resumed run passes it to `forget_after` and continues as if it had never stopped.
    `manifest.json` has the digests of the files that a resumed run reads, besides checkpoints and models, which have their own.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, trackers: Iterable[str] = ("tensorboard",), project: str = "midthought"
    ) -> None:
        """`trackers`: names of programs that also get the metrics; `project`: their project. Raises as `Trackers`."""
        self.path = Path(path)
        self.config_path = self.path / "config.yaml"
        self.settings_history_path = self.path / "settings_history.yaml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.trajectories_path = self.path / "trajectories.jsonl"
        self.summary_path = self.path / "summary.json"
        self.tensorboard_path = self.path / "tensorboard"
        self.checkpoints_path = self.path / "checkpoints"
        self.report_path = self.path / "report.html"
        self.metrics = JsonLines(self.metrics_path)
        self.trajectories = JsonLines(self.trajectories_path)
        self.findings = JsonLines(self.path / "findings.jsonl")
        self._lock: RunLock | None = None
        self._identity: tuple[int, int] | None = None
        """Device and inode of the folder that was locked."""
        self._trackers = Trackers(trackers, TrackedRun(self.path, project))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.unlock()

    def require_ours(self) -> None:
        """Raises `OutputPathError` if the path has files that this library did not write."""
        require_ours(self.path, "run")

    def require_usable(self, *, resume: bool) -> None:
        """Raises `CheckpointError` if the folder has a run that is not to be resumed, `OutputPathError` as `require_ours`."""
        self.require_ours()
        for name in ("warmup", "policy"):
            require_ours(self.path / name, "model", in_run=True)
        held = [path.name for path in (self.metrics_path, self.summary_path, self.checkpoints_path) if path.exists()]
        if held and not resume:
            raise CheckpointError(
                f"{self.path} already holds a run ({', '.join(held)}); resume it (--resume, or resume=True), or give "
                "another path"
            )

    def begin(self, *, resume: bool) -> Self:
        """First call of a process that will write: raises as `require_usable`, and locks the folder if it exists.

        Raises `RunLockedError` if another process uses it. `unlock` ends it.
        """
        self.require_ours()
        if kind_of(self.path):
            self.lock()
        try:
            self.require_usable(resume=resume)
            require_intact_run(self.path)
        except UserError:
            self.unlock()
            raise
        return self

    def create(self, *, resume: bool = False) -> Self:
        """Creates, marks and locks the folder; raises as `begin`."""
        self.require_usable(resume=resume)
        self.path.mkdir(parents=True, exist_ok=True)
        if kind_of(self.path) != "run":
            mark(self.path, "run")
        self.lock()
        for partial in self.path.glob(".*.partial"):  # left by a killed process
            partial.unlink(missing_ok=True)
        return self

    def lock(self) -> None:
        """Locks the folder. Raises `RunLockedError` if another process holds the lock."""
        self._lock = self._lock or RunLock.acquire(self.path)
        self._identity = _identity_of(self.path)

    def unlock(self) -> None:
        """Releases the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = self._identity = None

    def require_present(self) -> None:
        """Raises `StorageError` if the folder that was locked is gone: writing would create another one, for example in the mount
        point of its disk."""
        if self._identity is not None and _identity_of(self.path) != self._identity:
            raise StorageError(
                f"{self.path} is not the folder that this run opened: it was moved, or its disk is gone; mount the disk again, "
                "or move the folder back"
            )

    # -- writing -----------------------------------------------------------------------------------------------

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Appends `{"stage", "step", **metrics}` to `metrics.jsonl` and to the trackers. NaN and infinities become null.

        Keys are paths (`reward/mean`, `loss/policy`); measured times have the prefix `time/`, so that two runs can be
        compared without them.
        """
        if not metrics.keys().isdisjoint(("stage", "step")):
            raise ValueError(f"a metric cannot be named 'stage' or 'step': {sorted(metrics)}")
        self.require_present()
        values = {name: float(value) for name, value in metrics.items()}
        self.metrics.append([{"stage": stage, "step": step, **values}])
        self._trackers.log(stage, step, values)

    def num_seconds(self, *stages: str) -> float:
        """Returns the sum of `time/seconds` in the rows of these stages in `metrics.jsonl`."""
        return math.fsum(row.get("time/seconds", 0.0) for row in self.metrics.read() if row["stage"] in stages)

    def add_trajectories(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows of `trajectory_row` to `trajectories.jsonl`."""
        self.require_present()
        self.trajectories.append(rows)

    def write_file(self, name: str, text: str) -> None:
        """Writes a file that a resumed run reads, atomically, and its digest, with which `require_intact_run` compares it.

        A killed process leaves the file with the old or the new content, which both have their digest.
        """
        self.require_present()
        if self._is_marked:
            files = self._manifest["files"]
            self._write_manifest(files={**files, name: [*descriptions(files.get(name))[-1:], describe_text(text)]})
        write_whole(self.path / name, text)

    def expect_folder(self, name: str) -> None:
        """Notes that the run folder has a folder, without which the run cannot be resumed."""
        if self._is_marked:
            self._write_manifest(files={**self._manifest["files"], f"{name}/": []})

    @property
    def _is_marked(self) -> bool:
        return kind_of(self.path) == "run"

    @property
    def _manifest(self) -> dict[str, Any]:
        try:
            return manifest_of(self.path) or {"format": FORMAT, "files": {}}
        except ValueError as error:
            raise CheckpointError(
                f"{self.path / MANIFEST} {error}; delete it: the files are then not compared"
            ) from None

    def _write_manifest(self, **changes: Any) -> None:
        content = {**self._manifest, **changes}
        write_whole(self.path / MANIFEST, json.dumps(content, indent=1, sort_keys=True) + "\n")

    def settings_changes(self, settings: Section) -> list[Change]:
        """Returns the differences from the settings of the run's last start; empty if there was none."""
        with value_errors(self.path):
            if history := self.settings_history:
                return changes_between(history[-1]["settings"], settings)
            return changes_between(read_yaml(self.config_path) if self.config_path.is_file() else {}, settings)

    def record_settings(self, settings: RecipeConfig, changes: Sequence[Change], stage: str, step: int) -> None:
        """Writes the settings to `config.yaml`, and appends them to `settings_history.yaml`, with the changes, the step, the
        command and the versions of the packages."""
        self.write_file(self.config_path.name, settings.to_yaml())
        history = self.settings_history
        changes = changes or self.settings_changes(settings)  # of a start that left nothing to resume
        if history and not changes:
            return
        entry = {
            "stage": stage,
            "step": step,
            "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "command": command(),
            "versions": versions(),
            "changes": {change.name: {"before": change.before, "now": change.now} for change in changes},
            "settings": settings.to_dict(),
        }
        text = yaml.dump_all([*history, entry], Dumper=SAFE_DUMPER, sort_keys=False, allow_unicode=True)
        self.write_file(self.settings_history_path.name, text)

    @property
    def settings_history(self) -> list[dict[str, Any]]:
        """One entry for each start that changed a setting, the first start included."""
        if not self.settings_history_path.is_file():
            return []
        try:
            return list(yaml.load_all(read_regular_text(self.settings_history_path), SAFE_LOADER))
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"{self.settings_history_path} cannot be read ({reason}); repair or delete it"
            ) from None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes the run's metrics atomically, under flat dotted keys (see `flat_keys`)."""
        text = json.dumps(json_value(flat_keys(summary)), indent=2, ensure_ascii=False, allow_nan=False)
        write_whole(self.summary_path, text + "\n")

    # -- resuming ----------------------------------------------------------------------------------------------

    @property
    def log_position(self) -> dict[str, Any]:
        """The numbers of lines of both logs and the digests of these lines. What was logged is then on the disk."""
        self.require_present()
        self.metrics.flush()
        self.trajectories.flush()
        return {
            "num_metric_lines": self.metrics.num_lines,
            "num_trajectory_lines": self.trajectories.num_lines,
            "log_digests": {"metrics": self.metrics.sha256, "trajectories": self.trajectories.sha256},
        }

    def require_logged(self, position: Mapping[str, Any]) -> None:
        """Raises CheckpointError unless both logs begin with the lines that they had at this `log_position`; one
        before the first line has no digests."""
        digests = position.get("log_digests")
        if digests:
            self.metrics.require(position["num_metric_lines"], digests["metrics"])
            self.trajectories.require(position["num_trajectory_lines"], digests["trajectories"])

    def forget_after(self, position: Mapping[str, Any]) -> None:
        """Drops what was logged after this `log_position`, in the trackers too if they can. Raises as `require_logged`."""
        self.require_logged(position)
        self.trajectories.keep(min(position["num_trajectory_lines"], self.trajectories.num_lines))
        self.metrics.keep(min(position["num_metric_lines"], self.metrics.num_lines))
        next_steps: dict[str, int] = {}
        for row in self.metrics.read():
            next_steps[row["stage"]] = max(next_steps.get(row["stage"], 0), row["step"] + 1)
        self._trackers.restart_from(next_steps)

    def close(self) -> None:
        """Flushes and closes the trackers. Everything else is already written."""
        self._trackers.close()


def flat_keys(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as one level of dotted keys; one that is flat already comes back the same.

    >>> flat_keys({"after": {"exact_match": 0.9}, "seed": 1})
    {'after.exact_match': 0.9, 'seed': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flat_keys(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def require_intact_run(path: Path) -> None:
    """Raises `CheckpointError`, with the file and the remedy, if a file of the run at `path` is not as it was written.

    Checkpoints, models and logs are not looked at, nor a run without a manifest."""
    if kind_of(path) != "run":
        return
    for _ in range(3):  # another process may be writing
        if not (found := damage_in(path)):
            return
    raise CheckpointError(
        f"{path} {found}; restore the file from a copy, or, if it was changed on purpose, delete {path / MANIFEST}: "
        "the files are then not compared"
    )


def write_whole(path: Path, text: str) -> None:
    """Writes `path` atomically: a reader sees the old file or the new one."""
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
