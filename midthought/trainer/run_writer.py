"""Writes a trainer's run folder: settings, metrics, trajectories, checkpoints, and at the end the summary and the report."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.config import Change, CheckpointConfig, RecipeConfig, require_allowed
from midthought.errors import SettingsError
from midthought.files.output_folder import recover
from midthought.files.storage_errors import THEN_RESUME, storage_errors
from midthought.learning.checkpoint import step_of
from midthought.learning.learned_tokens import LearnedTokens
from midthought.learning.stopping import StopRequest
from midthought.report.console import Console
from midthought.report.html import write_report
from midthought.report.recorded_episodes import recorded_row
from midthought.report.run_folder import RunFolder, tracked_run_folder
from midthought.report.trajectory_row import trajectory_row
from midthought.rollout.trajectory_json import EPISODES_FOLDER, save_trajectories
from midthought.tokenization import Renderer
from midthought.trainer.checkpoint_manager import CheckpointManager, what_is_saved
from midthought.trainer.prompt_record import PromptRecord
from midthought.types import Trajectory

_log = logging.getLogger(__name__)

NUM_SHOWN = 8
"""Trajectories of an iteration or a validation that are written at most."""


@dataclass(frozen=True, slots=True)
class RunStage:
    """Makes a trainer one stage of a larger run. The owner of the run opens the folder, writes the settings, the summary and the
    report, and closes it."""

    folder: RunFolder
    name: str
    """Checkpoints are in `checkpoints/NAME`."""
    title: str
    """The stage on the console."""
    console: Console
    stop: StopRequest
    num_shown: int = NUM_SHOWN
    """Trajectories of an iteration or a validation that are written to `trajectories.jsonl`, at most `NUM_SHOWN`."""


class RunWriter:
    """Writes to a run folder. `newest` is the checkpoint that a resumed run continues from; None: it starts at iteration 0."""

    def __init__(
        self, place: str | Path | RunStage, config: RecipeConfig, *, resume: bool, allow_changes: bool = False
    ) -> None:
        """Raises `CheckpointError` if the folder holds a run and `resume` is not set, `OutputPathError` if it holds other
        files, `SettingsError` if a run is resumed with settings that change what is learned and `allow_changes` is not set.
        """
        self.is_owner = not isinstance(place, RunStage)
        self.run = place.folder if isinstance(place, RunStage) else tracked_run_folder(place, config.checkpoint)
        self._config = config
        self._learned: LearnedTokens | None = None
        self.is_finished = False
        self._is_resumed, self._allow_changes = resume, allow_changes
        self._num_shown = min(NUM_SHOWN, place.num_shown) if isinstance(place, RunStage) else NUM_SHOWN
        if self.is_owner:
            self.run.begin(resume=resume)
            self._require_allowed(self.run.settings_changes(config) if resume else [])
            self.run.create(resume=resume)
        self.checkpoints = CheckpointManager(
            self.run, place.name if isinstance(place, RunStage) else "ppo", config.checkpoint
        )
        self.newest = self.checkpoints.newest() if resume else None
        self.sft_checkpoints = CheckpointManager(self.run, "sft", config.checkpoint)
        """Checkpoints of the supervised steps."""
        self.sft_policy_path = self.run.path / "warmup"
        """Folder of the policy after the supervised steps."""
        if self.is_owner and resume:
            recover(self.sft_policy_path)
        self.has_sft = self.is_owner and resume and self.sft_policy_path.is_dir()
        """Whether an earlier process finished the supervised steps."""
        self.newest_sft = self.sft_checkpoints.newest() if self.is_owner and resume and not self.has_sft else None
        """The checkpoint that interrupted supervised steps continue from."""
        if self.is_owner and resume and self.newest is None and self.newest_sft is None:
            self.run.forget_after(self._start_of_fit())

    def _start_of_fit(self) -> Mapping[str, Any]:
        """Returns the position of the logs before the first iteration."""
        noted = self.run.noted_log_position if self.has_sft else None
        return noted or {"num_metric_lines": len(self.sft_rows()) if self.has_sft else 0, "num_trajectory_lines": 0}

    def note_sft(self) -> None:
        """Notes that the supervised steps are done and their policy is written."""
        self.run.expect_folder(self.sft_policy_path.name)
        self.run.note_log_position()

    def _require_allowed(self, changes: list[Change]) -> None:
        self._changes = changes
        try:
            require_allowed(changes, allow=self._allow_changes)
        except SettingsError:
            self.run.unlock()
            raise

    def compare(self, record: PromptRecord) -> None:
        """Raises `SettingsError` if a resumed run started with another record, unless changes are allowed. Call it before a
        checkpoint is loaded."""
        self._record = record
        if self.is_owner and self._is_resumed:
            self._require_allowed([*self._changes, *record.changes(self.run.path)])

    @property
    def policy_path(self) -> Path | None:
        """Folder of the trained policy. None: the owner of a larger run writes it."""
        return self.run.path / "policy" if self.is_owner else None

    @property
    def tokenizer_path(self) -> Path | None:
        """Folder of the tokenizer of the run that is resumed; None if nothing was saved yet."""
        if self.newest is not None or self.newest_sft is not None:
            return (self.newest or self.newest_sft) / "policy"  # type: ignore[operator]
        return self.sft_policy_path if self.has_sft else None

    def record_settings(self) -> None:
        """Writes the settings, and what `compare` was given. Call it after every check of them."""
        if not self.is_owner:
            return
        step = step_of(self.newest) if self.newest is not None else 0
        self.run.record_settings(self._config, self._changes, "ppo", step)
        self._record.write(self.run)
        for change in self._changes:
            _log.info("changed at iteration %d: %s", step, change)

    def sft_rows(self) -> list[dict[str, float]]:
        """Returns the metrics of every supervised step."""
        rows = (row for row in self.run.metrics.read() if row["stage"] == "sft")
        return [{name: value for name, value in row.items() if name != "stage"} for row in rows]

    def learned_tokens(self, trajectories: Sequence[Trajectory], iteration: int) -> LearnedTokens | None:
        """Returns what collects the values of tokens that `add_trajectories` then records; None: nothing is recorded."""
        settings = self._config.checkpoint
        is_due = settings.record_episodes and iteration % settings.record_every == 0
        self._learned = LearnedTokens(trajectories[: settings.record_episodes]) if is_due else None
        return self._learned

    def add_trajectories(
        self,
        trajectories: Sequence[Trajectory],
        renderer: Renderer,
        *,
        arm: str,
        iteration: int,
        is_right: Callable[[Trajectory], bool | None],
    ) -> None:
        """Appends the first few trajectories to `trajectories.jsonl`, and records as many as the settings say."""
        learned, self._learned = self._learned, None
        if arm != "train" or learned is not None:
            where = (self.run, self._config.checkpoint)
            record(*where, trajectories, renderer, arm=arm, step=iteration, is_right=is_right, learned=learned)
        if arm == "train" and self._config.checkpoint.keep_episodes:
            save_trajectories(self.run.path / EPISODES_FOLDER / f"{iteration:06}.jsonl", trajectories)
        self.run.add_trajectories(
            trajectory_row(t, renderer.decode, step=iteration, arm=arm, exact_match=is_right(t))
            for t in trajectories[: self._num_shown]
        )

    def finish(self, metrics_history: Sequence[Mapping[str, float]]) -> None:
        """Writes the summary (the last metrics, the last validation, the seed, the total time) and the report."""
        validations = [row for row in self.run.metrics.read() if row["stage"] == "validation"]
        last = {f"validation/{name}": value for name, value in (validations or [{}])[-1].items() if name != "stage"}
        seconds = math.fsum(metrics["time/seconds"] for metrics in metrics_history)
        summary = {"seed": self._config.training.seed, "seconds": seconds}
        self.run.write_summary({**summary, **(metrics_history[-1] if metrics_history else {}), **last})
        self.run.close()
        self.is_finished = True
        self.report()

    def report(self) -> None:
        """Writes `report.html` from what the folder holds now."""
        write_report(self.run.path)

    def close(self) -> None:
        """Closes and unlocks the folder, unless it belongs to a larger run."""
        if self.is_owner:
            self.run.close()
            self.run.unlock()


def record(
    run: RunFolder,
    settings: CheckpointConfig,
    trajectories: Sequence[Trajectory],
    renderer: Renderer,
    *,
    arm: str,
    step: int,
    is_right: Callable[[Trajectory], bool | None],
    learned: LearnedTokens | None = None,
) -> None:
    """Records the first `settings.record_episodes` trajectories with the values of their tokens, which `learned` has."""
    rows = [
        recorded_row(
            each, renderer, step=step, arm=arm, exact_match=is_right(each), learned=learned.of(each) if learned else ()
        )
        for each in trajectories[: settings.record_episodes]
    ]
    run.recording.add(arm, step, rows, max_bytes=int(settings.record_max_mib * 2**20))


@contextmanager
def disk_of(writer: RunWriter | None, console: Console) -> Iterator[None]:
    """Raises errors of the run folder's disk in the block as `StorageError`, with how to continue. If a signal stops the block,
    says what the run folder holds, unless the owner of a larger run does. Without a run folder it does nothing."""
    try:
        with nullcontext() if writer is None else storage_errors(writer.run.path, THEN_RESUME):
            yield
    except KeyboardInterrupt:
        if writer is not None and writer.is_owner:
            console.error(f"Stopped. {what_is_saved(writer.run.path)}. Continue with the same program and resume=True")
        raise
