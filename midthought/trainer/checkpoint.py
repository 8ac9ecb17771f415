"""The checkpoints of one stage of a run: saves them, deletes old ones, finds the newest one that is intact, and restores one."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from midthought.config import CheckpointConfig
from midthought.errors import CheckpointError
from midthought.files.manifest import MANIFEST
from midthought.files.output_folder import kind_of, recover, remove
from midthought.learning.checkpoint import (
    Checkpoint,
    keep_last,
    load_checkpoint,
    save_checkpoint,
    step_of,
    step_path,
    step_paths,
)
from midthought.learning.distributed.remote_learner import AnyLearner
from midthought.report.run_folder import RunFolder

_log = logging.getLogger(__name__)


class CheckpointManager:
    """Saves to `RUN/checkpoints/STAGE/checkpoints/step_000001`, …, and deletes what the settings do not keep.

    A checkpoint also stores `RunFolder.log_position`: it can be resumed from if it is intact and the logs begin with the lines
    that they had. A damaged one is set aside as `step_000001.damaged`.
    """

    def __init__(self, run: RunFolder, stage: str, settings: CheckpointConfig) -> None:
        self._run = run
        self._folder = run.checkpoints_path / stage
        self._settings = settings
        self._checked: Checkpoint | None = None
        self._saved_at = time.monotonic()

    def is_due(self, step: int, steps_per_unit: int = 1) -> bool:
        """Whether a checkpoint is due after this step: by `save_interval` × `steps_per_unit`, or by `save_minutes`."""
        is_old = time.monotonic() - self._saved_at >= 60 * self._settings.save_minutes
        return is_old or step % (self._settings.save_interval * steps_per_unit) == 0

    def newest(self) -> Path | None:
        """Returns the newest checkpoint that can be resumed from, compared with its digests; None if there is none yet.

        Damaged ones are set aside and named in a warning. Raises `CheckpointError` if there are checkpoints and none can be
        used. Call it in a locked run folder.
        """
        # what a killed process left
        for old in (self._folder / "checkpoints").glob(".step_*.old"):
            recover(old.with_name(old.name.removeprefix(".").removesuffix(".old")))
        for partial in (self._folder / "checkpoints").glob(".step_*.new"):
            with suppress(OSError):
                remove(partial)
        failures: list[tuple[Path, CheckpointError]] = []
        for path in reversed(step_paths(self._folder, with_damaged=True)):
            try:
                self._checked = self._load(path)
            except CheckpointError as error:
                failures.append((path, error))
                continue
            for failed, why in failures:
                reason = str(why).rpartition("; ")[0]
                _log.warning("%s; the run continues from %s%s", reason, path.name, self._set_aside(failed))
            return path
        if failures:
            raise CheckpointError(self._none_left(failures))
        return None

    def _set_aside(self, path: Path) -> str:
        """Renames a checkpoint that is damaged. Returns what was done, for the message."""
        if _is_intact(path):
            return ""
        aside = path.with_name(f"{path.name}.damaged")
        with suppress(OSError):
            remove(aside)
        path.rename(aside)
        return f", and the damaged checkpoint is now {aside}"

    def _none_left(self, failures: list[tuple[Path, CheckpointError]]) -> str:
        path, error = failures[0]
        reason = str(error).rpartition("; ")[0]
        others = f" (and {len(failures) - 1} earlier ones cannot be used, either)" if len(failures) > 1 else ""
        use = f"start another run from a checkpoint (--from {path}), " if _is_intact(path) else ""
        return (
            f"{reason}{others}, so the run cannot be resumed; restore the file from a copy, {use}or delete {self._folder}, and "
            "this stage starts again"
        )

    def _load(self, path: Path) -> Checkpoint:
        """Opens a checkpoint of this run. Raises `CheckpointError` if it is damaged, or if the logs lack its lines."""
        checkpoint = load_checkpoint(path)
        if checkpoint.state.get("step", step_of(path)) != step_of(path):
            raise CheckpointError(
                f"checkpoint {path} is of step {checkpoint.state['step']}; take another checkpoint of the run"
            )
        self._run.require_logged(checkpoint.state)
        return checkpoint

    def path(self, step: int) -> Path:
        """Path of the checkpoint of this step."""
        return step_path(self._folder, step)

    def save(
        self,
        learner: AnyLearner,
        tokenizer: Any,
        step: int,
        state: Mapping[str, Any],
        *,
        path: Path | None = None,
        best: int = 0,
    ) -> Path:
        """Writes a checkpoint and returns its path.

        `path` None: writes to the run folder, then deletes checkpoints of later steps (left by a run that was resumed from an
        earlier step), and all but the last `checkpoint.keep_last_n` and step `best` (0: none).
        """
        target = path or self.path(step)
        content = {**state, "step": step, **self._run.log_position}
        save(learner, tokenizer, content, target)
        if path is None:
            self._delete_old(step, best)
            self._saved_at = time.monotonic()
        return target

    def _delete_old(self, step: int, best: int) -> None:
        for path in step_paths(self._folder, with_damaged=True):
            if step_of(path) > step:
                remove(path)
        kept_best = self.path(best) if self._settings.keep_best and best else None
        keep_last(self._folder, self._settings.keep_last_n, kept_best)

    def restore(self, learner: AnyLearner, tokenizer: Any, path: Path, key: str) -> dict[str, Any]:
        """Takes the learner back to a checkpoint of this run, drops later lines, and returns the checkpoint's state.

        Raises CheckpointError as `restore`. The checkpoint that `newest` found is not compared with its digests twice.
        """
        checked, self._checked = self._checked, None
        checkpoint = checked if checked is not None and checked.path == path else load_checkpoint(path)
        _require_state(checkpoint, tokenizer, key)
        self._run.require_logged(checkpoint.state)
        checkpoint.restore(learner)
        if "num_metric_lines" in checkpoint.state:  # not if a trainer without a run folder wrote it
            self._run.forget_after(checkpoint.state)
        return checkpoint.state


def save(learner: AnyLearner, tokenizer: Any, state: Mapping[str, Any], path: Path) -> None:
    """Writes a checkpoint that `restore` reads."""
    save_checkpoint(path, learner, tokenizer=tokenizer, state={**state, "vocabulary": vocabulary_digest(tokenizer)})


def restore(learner: AnyLearner, tokenizer: Any, path: str | Path, key: str) -> dict[str, Any]:
    """Takes the learner back to a checkpoint that is in no run folder of its own, and returns the checkpoint's state.

    Raises CheckpointError if it is damaged, has no `key` in its state, or has another model or tokenizer.
    """
    checkpoint = load_checkpoint(path)
    _require_state(checkpoint, tokenizer, key)
    checkpoint.restore(learner)
    return checkpoint.state


def _require_state(checkpoint: Checkpoint, tokenizer: Any, key: str) -> None:
    path, state = checkpoint.path, checkpoint.state
    if key not in state:
        raise CheckpointError(f"checkpoint {path} was not written by a Trainer; give one of its save_checkpoint")
    if state.get("vocabulary") != vocabulary_digest(tokenizer):
        raise CheckpointError(
            f"checkpoint {path} has another tokenizer than this trainer; give the trainer the one in {path}/policy, or, if it is "
            "made from transcripts, go on with those that the run began with"
        )


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


def _is_intact(path: Path) -> bool:
    try:
        load_checkpoint(path)
    except CheckpointError:
        return False
    return True
