"""The run of a trainer or a recipe: console, and run folder (settings, metrics, trajectories, checkpoints, summary, report)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midthought.checks.during import ITERATION, VALIDATION
from midthought.config import Change, RecipeConfig, require_allowed
from midthought.errors import SettingsError
from midthought.files.output_folder import recover
from midthought.files.storage_errors import THEN_RESUME, storage_errors
from midthought.learning.distributed.remote_learner import AnyLearner
from midthought.learning.learned_tokens import LearnedTokens
from midthought.learning.stopping import StopRequest
from midthought.report.console import Console
from midthought.report.html import write_report
from midthought.report.recorded_episodes import TRAINING_ARM, token_values
from midthought.report.run_folder import RunFolder, tracked_run_folder
from midthought.report.trajectory_row import trajectory_row
from midthought.rollout.trajectory_json import EPISODES_FOLDER, save_trajectories
from midthought.tokenization import Renderer
from midthought.trainer.checkpoint import CheckpointManager, restore, save, what_is_saved
from midthought.trainer.prompt_record import PromptRecord
from midthought.types import Trajectory

NUM_SHOWN = 8
"""Trajectories of an iteration or a validation that are written at most."""


@dataclass(frozen=True, slots=True)
class RunStage:
    """Makes a trainer one stage of a larger run, whose owner opens and closes the folder, and writes the settings, the summary
    and the report."""

    owner: Run
    name: str
    """Checkpoints are in `checkpoints/NAME`."""
    title: str
    """The stage on the console."""


class Run:
    """The run of a trainer or a recipe. Without a folder it writes nothing; before `create` it only locks a folder that exists.

    Args:
        place: the run folder; None: there is none.
        console: None: that of the larger run, or a new one.
        num_shown: maximum number of trajectories of an evaluation that are written to `trajectories.jsonl`. Of an iteration and
            a validation they are at most `NUM_SHOWN`.

    Raises `CheckpointError` if the folder holds a run and `resume` is not set, `OutputPathError` if it holds other files.
    """

    folder: RunFolder | None = None
    newest: Path | None = None
    """The checkpoint that a resumed run continues from; None: it starts at iteration 0."""
    newest_sft: Path | None = None
    """The checkpoint that interrupted supervised steps continue from."""
    has_sft = False
    """Whether an earlier process finished the supervised steps."""
    is_finished = False

    def __init__(
        self,
        place: str | Path | RunStage | None,
        config: RecipeConfig,
        *,
        resume: bool = False,
        allow_changes: bool = False,
        console: Console | None = None,
        num_shown: int = NUM_SHOWN,
    ) -> None:
        self.stage = place if isinstance(place, RunStage) else None
        """The stage of a larger run that this one is."""
        self._config, self.is_resumed, self._allow_changes = config, resume, allow_changes
        self._num_shown = num_shown
        self._learned: LearnedTokens | None = None
        self.console = console or Console()
        self.stop = StopRequest()
        """Delays Ctrl-C during the run."""
        if isinstance(place, RunStage):
            owner = place.owner
            self.folder, self.console, self.stop = owner.folder, owner.console, owner.stop
            self._num_shown = owner._num_shown
        elif place is not None:
            with storage_errors(place):
                self.folder = tracked_run_folder(place, config.checkpoint)
                self.folder.begin(resume=resume)

    def create(self) -> None:
        """Creates and locks the folder."""
        if self.folder is not None and self.stage is None:
            self.folder.create(resume=self.is_resumed)

    def find_checkpoints(self) -> None:
        """Finds what a trainer continues from, and drops what was logged later."""
        if self.folder is None:
            return
        self.checkpoints = self.manager("ppo" if self.stage is None else self.stage.name)
        self.sft_checkpoints = self.manager("sft")
        if not self.is_resumed:
            return
        self.newest = self.checkpoints.newest()
        if self.sft_policy_path is None:
            return
        recover(self.sft_policy_path)
        self.has_sft = self.sft_policy_path.is_dir()
        self.newest_sft = None if self.has_sft else self.sft_checkpoints.newest()
        if self.newest is None and self.newest_sft is None:
            noted = self.folder.noted_log_position if self.has_sft else None
            num_lines = len(self.sft_rows()) if self.has_sft else 0
            self.folder.forget_after(noted or {"num_metric_lines": num_lines, "num_trajectory_lines": 0})

    def manager(self, stage: str) -> CheckpointManager:
        """Returns the manager of a stage's checkpoints."""
        assert self.folder is not None
        return CheckpointManager(self.folder, stage, self._config.checkpoint)

    # -- where things are ------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        return None if self.folder is None else self.folder.path

    @property
    def policy_path(self) -> Path | None:
        """Folder of the trained policy. None: there is none, or the owner of a larger run writes it."""
        return None if self.path is None or self.stage is not None else self.path / "policy"

    @property
    def sft_policy_path(self) -> Path | None:
        """Folder of the policy after the supervised steps."""
        return None if self.path is None or self.stage is not None else self.path / "warmup"

    @property
    def tokenizer_path(self) -> Path | None:
        """Folder of the tokenizer of the run that is resumed; None if nothing was saved yet."""
        saved = self.newest or self.newest_sft
        return saved / "policy" if saved is not None else self.sft_policy_path if self.has_sft else None

    # -- settings --------------------------------------------------------------------------------------------------

    def require_same(self, config: RecipeConfig, record: PromptRecord | None = None) -> None:
        """Raises `SettingsError` if a resumed run started with other settings, or with another record, and changes are not
        allowed. Call it before a checkpoint is loaded."""
        self._config, self._record = config, record
        self._changes: list[Change] = []
        if self.folder is None or self.stage is not None or not self.is_resumed:
            return
        self._changes = self.folder.settings_changes(config)
        if record is not None:
            self._changes += record.changes(self.folder.path)
        try:
            require_allowed(self._changes, allow=self._allow_changes)
        except SettingsError:
            self.folder.unlock()
            raise

    def record_settings(self, stage: str, step: int) -> list[Change]:
        """Writes what `require_same` was given. Call it after every check. Returns what changed; `step`: when."""
        if self.folder is None or self.stage is not None:
            return []
        assert self._record is not None
        self.folder.record_settings(self._config, self._changes, stage, step)
        self._record.write(self.folder)
        return self._changes

    # -- disk and signals ------------------------------------------------------------------------------------------

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Raises errors of the run folder's disk in the block as `StorageError`, with how to continue. If a signal stops the
        block, says what the run folder holds, unless the owner of a larger run does."""
        try:
            with nullcontext() if self.path is None else storage_errors(self.path, THEN_RESUME):
                yield
        except KeyboardInterrupt:
            if self.path is not None and self.stage is None:
                self.console.error(
                    f"Stopped. {what_is_saved(self.path)}. Continue with the same program and resume=True"
                )
            raise

    # -- metrics and episodes --------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """Returns what was logged so far."""
        return [] if self.folder is None else [*self.folder.metrics.read()]

    def sft_rows(self) -> list[dict[str, float]]:
        """Returns the metrics of every supervised step."""
        rows = (row for row in self.rows() if row["stage"] == "sft")
        return [{name: value for name, value in row.items() if name != "stage"} for row in rows]

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Logs metrics."""
        if self.folder is not None:
            self.folder.log(stage, step, metrics)

    def learned_tokens(self, trajectories: Sequence[Trajectory], iteration: int) -> LearnedTokens | None:
        """Returns what collects the values of tokens that `add_trajectories` then records; None: nothing is recorded."""
        settings = self._config.checkpoint
        is_due = self.folder is not None and settings.record_episodes and iteration % settings.record_every == 0
        self._learned = LearnedTokens(trajectories[: settings.record_episodes]) if is_due else None
        return self._learned

    def add_trajectories(
        self,
        stage: str,
        iteration: int,
        trajectories: Sequence[Trajectory],
        renderer: Renderer,
        is_right: Callable[[Trajectory], bool | None],
    ) -> None:
        """Appends the first few trajectories to `trajectories.jsonl`, with the tokens of as many as the settings say."""
        if self.folder is None:
            return
        is_training, settings, log = stage == ITERATION, self._config.checkpoint, self.folder.trajectories
        learned = self._learned if is_training else None
        num_shown = min(NUM_SHOWN, self._num_shown) if is_training or stage.startswith(VALIDATION) else self._num_shown
        max_bytes = settings.record_max_mib * 2**20
        is_recorded = (not is_training or learned is not None) and log.num_bytes < max_bytes
        num_recorded = settings.record_episodes if is_recorded else 0
        rows = []
        for number, each in enumerate(trajectories[: max(num_shown, num_recorded)]):
            arm = TRAINING_ARM if is_training else stage
            row = trajectory_row(each, renderer.decode, step=iteration, arm=arm, exact_match=is_right(each))
            tokens = token_values(each, renderer, learned.of(each) if learned else ()) if number < num_recorded else {}
            rows.append(row | tokens)
        self.folder.add_trajectories(rows)
        if num_recorded and log.num_bytes >= max_bytes:
            self.console.note(
                f"{log.path} has checkpoint.record_max_mib={settings.record_max_mib:g}: no more tokens are recorded"
            )
        if is_training and settings.keep_episodes:
            save_trajectories(self.folder.path / EPISODES_FOLDER / f"{iteration:06}.jsonl", trajectories)

    # -- checkpoints and the end -----------------------------------------------------------------------------------

    def is_due(self, iteration: int, *, is_needed: bool) -> bool:
        """Whether a checkpoint is due after this iteration, or needed and there is a run folder."""
        return self.folder is not None and (is_needed or self.checkpoints.is_due(iteration))

    def save(
        self,
        learner: AnyLearner,
        tokenizer: Any,
        iteration: int,
        state: Mapping[str, Any],
        path: str | Path | None,
        best: int,
    ) -> Path:
        """Writes a checkpoint as `CheckpointManager.save`, and returns its path."""
        target = None if path is None else Path(path)
        if self.folder is not None:
            return self.checkpoints.save(learner, tokenizer, iteration, state, path=target, best=best)
        if target is None:
            raise SettingsError("where to? give save_checkpoint a path, or the trainer a run_path")
        save(learner, tokenizer, state, target)
        return target

    def restore(self, learner: AnyLearner, tokenizer: Any, path: str | Path) -> dict[str, Any]:
        """Takes the learner back to a checkpoint of a trainer, and returns the checkpoint's state. If it is in this run folder,
        what was logged later is dropped. Raises CheckpointError."""
        if self.path is not None and Path(path).resolve().is_relative_to(self.path.resolve()):
            return self.checkpoints.restore(learner, tokenizer, Path(path), "metrics_history")
        return restore(learner, tokenizer, path, "metrics_history")

    def note_sft(self) -> None:
        """Notes that the supervised steps are done and their policy is written."""
        assert self.folder is not None
        self.folder.expect_folder("warmup")
        self.folder.note_log_position()

    def finish(self, metrics_history: Sequence[Mapping[str, float]]) -> None:
        """Writes the summary (the last metrics, the last validation, the seed, the total time) and the report."""
        if self.folder is None:
            return
        validations = [row for row in self.rows() if row["stage"] == "validation"]
        last = {f"validation/{name}": value for name, value in (validations or [{}])[-1].items() if name != "stage"}
        seconds = math.fsum(metrics.get("time/seconds", 0.0) for metrics in metrics_history)
        summary = {"seed": self._config.training.seed, "seconds": seconds}
        self.folder.write_summary({**summary, **(metrics_history[-1] if metrics_history else {}), **last})
        self.folder.close()
        self.is_finished = True
        self.report()

    def report(self) -> None:
        """Writes `report.html` from what the folder holds now."""
        if self.path is not None:
            write_report(self.path)

    def close(self) -> None:
        """Closes and unlocks the folder, unless it belongs to a larger run."""
        if self.folder is not None and self.stage is None:
            self.folder.close()
            self.folder.unlock()
