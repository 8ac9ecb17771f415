"""What an interrupted run continues from: the checkpoints of one stage (saves them, deletes old ones, finds the newest one that
is intact, and restores one), and the stages that are done (`progress.json`)."""

from __future__ import annotations

import hashlib
import json
import logging
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from midthought.config import CheckpointConfig
from midthought.errors import CheckpointError, SettingsError
from midthought.files.output_folder import MANIFEST, kind_of, recover, remove
from midthought.files.regular import read_json_object
from midthought.learning.checkpoint_folder import (
    Checkpoint,
    keep_last,
    load_checkpoint,
    save_checkpoint,
    step_of,
    step_path,
    step_paths,
)
from midthought.learning.remote_learner import AnyLearner
from midthought.report.run_folder import PROGRESS, RunFolder

SFT = "warmup"
"""The stage of the supervised steps, and the folder of their policy."""
_log = logging.getLogger(__name__)


class CheckpointManager:
    """Saves to `RUN/checkpoints/STAGE/checkpoints/step_000001`, …, and deletes what the settings do not keep.

    A checkpoint also stores `RunFolder.log_position`: it can be resumed from if it is intact and the logs begin with the lines
    that they had. A damaged one is set aside as `step_000001.damaged`. `run` None: checkpoints are saved on request only.
    """

    def __init__(self, run: RunFolder | None, stage: str, settings: CheckpointConfig) -> None:
        self._run = run
        self._folder = Path() if run is None else run.checkpoints_path / stage
        self._settings = settings
        self._checked: Checkpoint | None = None
        self._saved_at = time.monotonic()

    def is_due(self, step: int, steps_per_unit: int = 1, *, is_needed: bool = False) -> bool:
        """Whether a checkpoint is due after this step in the run folder: by `save_interval` × `steps_per_unit`, by
        `save_minutes`, or because it `is_needed`."""
        is_old = time.monotonic() - self._saved_at >= 60 * self._settings.save_minutes
        is_due = is_needed or is_old or step % (self._settings.save_interval * steps_per_unit) == 0
        return is_due and self._run is not None

    def newest(self) -> Path | None:
        """Returns the newest checkpoint that can be resumed from, compared with its digests; None if there is none yet. Damaged
        ones are set aside and named in a warning. Raises `CheckpointError` if there are checkpoints and none can be used. Call
        it in a locked run folder."""
        # what a killed process left
        for old in (self._folder / "checkpoints").glob(".step_*.old"):
            recover(old.with_name(old.name.removeprefix(".").removesuffix(".old")))
        for partial in (self._folder / "checkpoints").glob(".step_*.new"):
            with suppress(OSError):
                remove(partial)
        failures: list[tuple[Path, str, bool]] = []
        for path in reversed(step_paths(self._folder, with_damaged=True)):
            is_intact = False
            try:
                self._checked = load_checkpoint(path)
                is_intact = True
                self._require_of_run(self._checked)
            except CheckpointError as error:
                failures.append((path, str(error).rpartition("; ")[0], is_intact))
                continue
            for failed, reason, is_intact in failures:
                aside = "" if is_intact else f", and the damaged checkpoint is now {_set_aside(failed)}"
                _log.warning("%s; the run continues from %s%s", reason, path.name, aside)
            return path
        if failures:
            path, reason, is_intact = failures[0]
            others = f" (and {len(failures) - 1} earlier ones cannot be used, either)" if len(failures) > 1 else ""
            use = f"start another run from a checkpoint (--from {path}), " if is_intact else ""
            raise CheckpointError(
                f"{reason}{others}, so the run cannot be resumed; restore the file from a copy, {use}or delete {self._folder}, "
                "and this stage starts again"
            )
        return None

    def _require_of_run(self, checkpoint: Checkpoint) -> None:
        """Raises `CheckpointError` if a checkpoint is of another step than its name says, or if the logs lack its lines."""
        assert self._run is not None
        step = checkpoint.state.get("step", step_of(checkpoint.path))
        if step != step_of(checkpoint.path):
            raise CheckpointError(f"checkpoint {checkpoint.path} is of step {step}; take another checkpoint of the run")
        self._run.require_logged(checkpoint.state)

    def save(
        self,
        learner: AnyLearner,
        tokenizer: Any,
        step: int,
        state: Mapping[str, Any],
        *,
        path: str | Path | None = None,
        best: int = 0,
    ) -> Path:
        """Writes a checkpoint and returns its path.

        `path` None: writes to the run folder, then deletes checkpoints of later steps (left by a run that was resumed from an
        earlier step), and all but the last `checkpoint.keep_last_n` and step `best` (0: none). Raises SettingsError if there is
        neither a path nor a run folder.
        """
        if path is None and self._run is None:
            raise SettingsError("where to? give save_checkpoint a path, or the trainer a run_path")
        target = step_path(self._folder, step) if path is None else Path(path)
        position = {} if self._run is None else {"step": step, **self._run.log_position}
        content = {**state, **position, "vocabulary": vocabulary_digest(tokenizer)}
        save_checkpoint(target, learner, tokenizer=tokenizer, state=content)
        if path is None:
            for later in step_paths(self._folder, with_damaged=True):
                if step_of(later) > step:
                    remove(later)
            kept_best = step_path(self._folder, best) if best else None
            keep_last(self._folder, self._settings.keep_last_n, kept_best)
            self._saved_at = time.monotonic()
        return target

    def restore(self, learner: AnyLearner, tokenizer: Any, path: str | Path, key: str) -> dict[str, Any]:
        """Takes the learner back to a checkpoint, and returns its state. If it is in this run folder, what was logged later is
        dropped. Raises CheckpointError if it is damaged, has no `key` in its state, has another model or tokenizer, or if the
        logs lack its lines. The checkpoint that `newest` found is not compared with its digests twice."""
        checked, self._checked = self._checked, None
        checkpoint = checked if checked is not None and checked.path == Path(path) else load_checkpoint(path)
        state = checkpoint.state
        if key not in state:
            raise CheckpointError(f"checkpoint {path} was not written by a Trainer; give one of its save_checkpoint")
        if state.get("vocabulary") != vocabulary_digest(tokenizer):
            raise CheckpointError(
                f"checkpoint {path} has another tokenizer than this trainer; give the trainer the one in {path}/policy, or, if "
                "it is made from transcripts, go on with those that the run began with"
            )
        run = self._run
        if run is not None and not checkpoint.path.resolve().is_relative_to(run.path.resolve()):
            run = None
        if run is not None:
            run.require_logged(state)
        checkpoint.restore(learner)
        if run is not None and "num_metric_lines" in state:  # not if a trainer without a run folder wrote it
            run.forget_after(state)
        return state


def _set_aside(path: Path) -> Path:
    """Renames a damaged checkpoint. Returns its new path."""
    aside = path.with_name(f"{path.name}.damaged")
    with suppress(OSError):
        remove(aside)
    return path.rename(aside)


def what_is_saved(run: Path) -> str:
    """Returns a sentence about what a stopped run continues from: its newest checkpoint, or the policy of a finished stage."""
    saved = (file for file in run.rglob(MANIFEST) if kind_of(file.parent) in ("checkpoint", "model"))
    whole = [file for file in saved if file.parent.name[0] != "." and file.parent.suffix != ".damaged"]
    if not whole:
        return "Nothing that was learned is saved yet"
    return f"The newest that is saved is {max(whole, key=lambda file: file.stat().st_mtime_ns).parent}"


def vocabulary_digest(tokenizer: Any) -> str:
    """Returns a hash of a tokenizer's tokens and ids, to distinguish tokenizers."""
    words = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()


# -- stages -----------------------------------------------------------------------------------------------------------


def process_peak_bytes() -> int:
    """Returns the peak of resident memory since the process started."""
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class RunProgress:
    """Completed stages with their metrics and seconds, and the number of lines of the run's files that belong to them."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._path = run.path / PROGRESS
        self.stage = ""
        self.from_path: str | None = None
        """`--stage` and `--from` of the start of a recipe's run; a resumed run uses the same. `stage` is empty in other runs."""
        self.is_given = True
        """Whether the run started from a user's model, not from a small one that this run or an earlier one created."""
        self.done: list[str] = []
        self.metrics: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.peak_rss_mib = 0.0
        """Peak resident memory of any process of the run."""
        self.log_position: dict[str, Any] = {"num_metric_lines": 0, "num_trajectory_lines": 0}
        """Position of the logs after the last finished stage (`RunFolder.log_position`)."""

    def load(self) -> None:
        """Reads what an earlier process wrote. Raises `CheckpointError` if there is nothing to continue from."""
        try:
            state = read_json_object(self._path)
            if state.keys() != self._state.keys():
                raise ValueError(f"it does not hold {', '.join(self._state)}")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self._path} cannot be read ({error}); there is no run to go on with") from None
        vars(self).update(state)

    def save(self) -> None:
        self.peak_rss_mib = max(self.peak_rss_mib, process_peak_bytes() / 2**20)
        self._run.write_file(PROGRESS, json.dumps(self._state, indent=1) + "\n")

    @property
    def _state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the seconds of a stage, also of an interrupted one, to the seconds that earlier processes spent on it."""
        began, before = time.monotonic(), self.seconds.get(stage, 0.0)
        try:
            yield
        finally:
            self.seconds[stage] = before + time.monotonic() - began

    def spent(self) -> dict[str, float]:
        """Returns the seconds of the run without its control arms, the seconds of every stage, and the peak memory."""
        own = (spent for stage, spent in self.seconds.items() if not stage.startswith("arms."))
        by_stage = {f"seconds.{stage}": spent for stage, spent in self.seconds.items()}
        return {"seconds": sum(own), **by_stage, "peak_rss_mib": self.peak_rss_mib}

    def finish(self, stage: str, metrics: dict[str, Any] | None = None) -> None:
        """Marks the stage as done and records its metrics."""
        self.done = [*dict.fromkeys([*self.done, stage])]
        self.log_position = self._run.log_position
        self.metrics |= metrics or {}
        self.save()
